//! Gauges, read off the state of the Edge when somebody looks.

use iop_admission::{ProviderView, TargetHealth};
use iop_net::link::BudgetStats;
use iop_types::ProviderState;

use crate::core::Core;
use crate::group::NodeView;
use crate::metrics::Gauge;

/// Reads all of them.
pub(super) fn read(core: &Core) -> Vec<Gauge> {
    let mut gauges = process(core);
    gauges.extend(queue(core));
    gauges.extend(providers(core));
    gauges.extend(links(core));
    gauges
}

fn process(core: &Core) -> Vec<Gauge> {
    let health = core.history.health();
    let memory = core.budget.stats();
    vec![
        one(
            "requests_in_flight",
            "Requests from admission to the return of their last attempt",
            core.live.len() as f64,
        ),
        one(
            "buffered_body_bytes",
            "Request bodies and unsent answers in memory",
            memory.used as f64,
        ),
        one(
            "buffered_body_limit_bytes",
            "What they may take together before requests are refused",
            memory.limit as f64,
        ),
        one("buffered_body_peak_bytes", "Most that they ever took", memory.peak as f64),
        counter(
            "buffered_body_refusals",
            "Bodies that did not fit into memory",
            memory.refused as f64,
        ),
        one(
            "history_degraded",
            "Whether rows of history cannot be written",
            f64::from(u8::from(health.degraded.is_some())),
        ),
        one(
            "history_waiting_rows",
            "Rows of history that wait to be written",
            health.waiting as f64,
        ),
        counter("history_written_rows", "Rows of history written", health.written as f64),
        counter("history_dropped_rows", "Rows of history given up", health.dropped as f64),
    ]
}

fn queue(core: &Core) -> Vec<Gauge> {
    let gauges = core.desk.tell(|admission, now| admission.gauges(now));
    let route = |name: &iop_types::RouteName| vec![("route", name.to_string())];
    vec![
        one("permits_in_use", "Permits out, over all providers", f64::from(gauges.in_flight)),
        one(
            "queue_waiting",
            "Requests that wait for capacity, over all routes",
            gauges.waiting as f64,
        ),
        one(
            "queue_oldest_wait_seconds",
            "How long the oldest of them has waited",
            gauges.oldest_wait.unwrap_or_default().as_secs_f64(),
        ),
        Gauge {
            name: "route_queue_waiting",
            help: "Requests that wait for capacity, by route",
            counts: false,
            values: gauges
                .routes
                .iter()
                .map(|gauge| (route(&gauge.route), gauge.waiting as f64))
                .collect(),
        },
        Gauge {
            name: "route_queue_oldest_wait_seconds",
            help: "How long the oldest of them has waited, by route",
            counts: false,
            values: gauges
                .routes
                .iter()
                .map(|gauge| (route(&gauge.route), gauge.oldest_wait.as_secs_f64()))
                .collect(),
        },
    ]
}

fn providers(core: &Core) -> Vec<Gauge> {
    let views = core.desk.tell(|admission, now| admission.providers(now));
    let family = |name, help, value: &dyn Fn(&ProviderView) -> Option<f64>| Gauge {
        name,
        help,
        counts: false,
        values: views
            .iter()
            .filter_map(|view| {
                let labels = vec![
                    ("node", view.id.node.to_string()),
                    ("provider", view.id.provider.to_string()),
                ];
                Some((labels, value(view)?))
            })
            .collect(),
    };
    let mut gauges = vec![
        family("provider_ready", "Whether the provider takes requests", &|view| {
            Some(f64::from(u8::from(view.ready && view.state == ProviderState::Ready)))
        }),
        family("provider_capacity", "Calls the provider takes at once", &|view| {
            Some(f64::from(view.capacity))
        }),
        family("provider_in_use", "Permits of the provider that are out", &|view| {
            Some(f64::from(view.in_use))
        }),
        family("provider_zombies", "Cancelled calls not seen to return", &|view| {
            Some(f64::from(view.zombies))
        }),
        family("provider_targets", "Targets the provider serves", &|view| {
            Some(view.targets.len() as f64)
        }),
        family("provider_queued", "Requests that wait in the server, where it tells", &|view| {
            view.queued.map(f64::from)
        }),
    ];
    gauges.extend(health(&views));
    gauges
}

/// Each target of whose health something is known.
fn health(views: &[ProviderView]) -> [Gauge; 2] {
    let family = |name, help, value: fn(&TargetHealth) -> bool| {
        let targets = views.iter().flat_map(|view| view.health.iter().map(move |of| (view, of)));
        let values = targets.map(|(view, health)| {
            let labels = vec![
                ("node", view.id.node.to_string()),
                ("provider", view.id.provider.to_string()),
                ("target", health.target.to_string()),
            ];
            (labels, f64::from(u8::from(value(health))))
        });
        Gauge { name, help, counts: false, values: values.collect() }
    };
    [
        family(
            "target_left_out",
            "Whether the target is left out of choices as unavailable",
            |of| of.left_out_for.is_some(),
        ),
        family("target_cooling", "Whether the target's provider asked to be left alone", |of| {
            of.cooling_for.is_some()
        }),
    ]
}

fn links(core: &Core) -> Vec<Gauge> {
    let nodes = core.group.view();
    let family = |name, help, counts, value: &dyn Fn(&crate::group::Linked) -> Option<f64>| Gauge {
        name,
        help,
        counts,
        values: nodes
            .iter()
            .filter_map(|node| {
                let value = value(node.linked.as_ref()?)?;
                Some((vec![("node", node.node.to_string())], value))
            })
            .collect(),
    };
    let mut gauges = vec![
        family("link_streams", "Streams open on the link", false, &|link| {
            Some(f64::from(link.stats.streams))
        }),
        family("link_commands", "Commands under way on the link", false, &|link| {
            Some(f64::from(link.stats.commands))
        }),
        family(
            "link_granted_bytes",
            "Payload bytes that the node may still send",
            false,
            &|link| Some(link.stats.granted_bytes as f64),
        ),
        family("link_buffered_bytes", "Payload bytes received and not yet taken", false, &|link| {
            Some(link.stats.buffered_bytes as f64)
        }),
        family("link_queued_bytes", "Payload bytes that wait to be sent", false, &|link| {
            Some(link.stats.queued_bytes as f64)
        }),
        family(
            "link_late_frames",
            "Frames that came after their stream had ended",
            true,
            &|link| Some(link.stats.late_frames as f64),
        ),
        family(
            "link_heartbeat_rtt_seconds",
            "Last measured heartbeat round trip",
            false,
            &|link| link.stats.heartbeat_rtt.map(|rtt| rtt.as_secs_f64()),
        ),
    ];
    gauges.extend(credit(&nodes));
    gauges.push(Gauge {
        name: "node_linked",
        help: "Whether the node has a link",
        counts: false,
        values: nodes
            .iter()
            .map(|node| {
                let linked = f64::from(u8::from(node.linked.is_some()));
                (vec![("node", node.node.to_string())], linked)
            })
            .collect(),
    });
    gauges
}

/// The budgets of each link, by what travels: answers are held here, request bodies at the Node.
fn credit(nodes: &[NodeView]) -> [Gauge; 3] {
    let family = |name, help, value: fn(&BudgetStats) -> u64| {
        let linked = nodes.iter().filter_map(|node| Some((node, node.linked.as_ref()?.stats)));
        let values = linked.flat_map(|(node, stats)| {
            [("answers", Some(stats.receiving)), ("bodies", stats.claimed)].into_iter().filter_map(
                move |(what, budget)| {
                    let labels = vec![("node", node.node.to_string()), ("of", what.to_owned())];
                    Some((labels, value(&budget?) as f64))
                },
            )
        });
        Gauge { name, help, counts: false, values: values.collect() }
    };
    [
        family("link_credit_limit_bytes", "Credit that may be reserved on the link", |budget| {
            budget.limit
        }),
        family("link_credit_reserved_bytes", "Credit that is reserved on the link", |budget| {
            budget.reserved
        }),
        family("link_credit_peak_bytes", "Most credit that was reserved on the link", |budget| {
            budget.peak
        }),
    ]
}

fn one(name: &'static str, help: &'static str, value: f64) -> Gauge {
    Gauge { name, help, counts: false, values: vec![(Vec::new(), value)] }
}

fn counter(name: &'static str, help: &'static str, value: f64) -> Gauge {
    Gauge { counts: true, ..one(name, help, value) }
}
