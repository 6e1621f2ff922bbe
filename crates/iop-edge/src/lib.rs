//! The Edge host: client surfaces, admission, dispatch, relay, history.
