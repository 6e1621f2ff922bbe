// The official `openai` client for JavaScript.
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";
import { iop, knobs, MOCK, mockUrl, narrowUrl, openai, prompt, REAL, realUrl } from "./setup.js";

const real = openai(realUrl);
const mock = openai(mockUrl);
const narrow = openai(narrowUrl);

async function collect(stream) {
  const seen = { text: "", finish: [], usage: [], chunks: 0 };
  for await (const chunk of stream) {
    seen.chunks += 1;
    seen.text += chunk.choices[0]?.delta?.content ?? "";
    if (chunk.choices[0]?.finish_reason) seen.finish.push(chunk.choices[0].finish_reason);
    if (chunk.usage) seen.usage.push(chunk.usage);
  }
  return seen;
}

test("a real answer has text, finish reason and usage", async () => {
  const answer = await real.chat.completions.create({
    model: REAL, messages: prompt("Name three colours."), max_tokens: 8, temperature: 0,
  });
  assert.ok(answer.choices[0].message.content.trim());
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 8);
});

test("a real stream gives the same text as the whole answer", async () => {
  const request = {
    model: REAL, messages: prompt("Name three colours."), max_tokens: 8, temperature: 0,
  };
  const whole = await real.chat.completions.create(request);
  const seen = await collect(await real.chat.completions.create({ ...request, stream: true }));
  assert.equal(seen.text, whole.choices[0].message.content);
  assert.deepEqual(seen.finish, ["length"]);
  assert.deepEqual(seen.usage, []);
});

test("usage that a real provider leaves out arrives as an estimate", iop, async () => {
  const seen = await collect(await real.chat.completions.create({
    model: REAL, messages: prompt("Hi"), max_tokens: 4, stream: true,
    stream_options: { include_usage: true },
  }));
  assert.deepEqual(seen.finish, ["length"]);
  assert.deepEqual(seen.usage.map((usage) => usage.completion_tokens), [4]);
  assert.equal(seen.usage[0].iop_source, "estimated");
});

test("usage arrives once when it was asked for and never otherwise", async () => {
  const request = { model: MOCK, messages: prompt(knobs({ chunks: 5 })), stream: true };
  const without = await collect(await mock.chat.completions.create(request));
  assert.deepEqual([without.finish, without.usage], [["stop"], []]);
  const asked = await collect(await mock.chat.completions.create({
    ...request, stream_options: { include_usage: true },
  }));
  assert.deepEqual(asked.usage.map((usage) => usage.completion_tokens), [5]);
});

test("the model list names the models of all providers", iop, async () => {
  const ids = [];
  for await (const model of mock.models.list()) ids.push(model.id);
  assert.ok(ids.includes(REAL) && ids.includes(MOCK), ids.join(", "));
  assert.equal((await mock.models.retrieve(REAL)).id, REAL);
});

test("embeddings arrive as numbers", async () => {
  const answer = await mock.embeddings.create({ model: MOCK, input: ["[[bench dims=8]]", "b"] });
  assert.deepEqual(
    Array.from(answer.data[1].embedding),
    Array.from({ length: 8 }, (_, at) => 1 + at / 64),
  );
});

test("an unknown model is not found", iop, async () => {
  await assert.rejects(
    mock.chat.completions.create({ model: "no-such-model", messages: prompt("hi") }),
    (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.equal(error.code, "model_not_found");
      assert.ok(error.requestID);
      return true;
    },
  );
});

test("a provider error keeps its status and body", async () => {
  for (const [status, kind] of [[400, OpenAI.BadRequestError], [429, OpenAI.RateLimitError]]) {
    for (const stream of [false, true]) {
      await assert.rejects(
        mock.chat.completions.create({
          model: MOCK, messages: prompt(knobs({ status })), stream,
        }),
        (error) => {
          assert.ok(error instanceof kind, String(error));
          assert.equal(error.code, "scripted");
          return true;
        },
      );
    }
  }
});

test("every answer carries a request id", iop, async () => {
  const request = { model: MOCK, messages: prompt(knobs({ size: 10 })) };
  const { request_id: id } = await mock.chat.completions.create(request).withResponse();
  assert.ok(id);
  assert.notEqual(id, (await mock.chat.completions.create(request))._request_id);
});

test("two requests at a provider of capacity one take turns and both finish", iop, async () => {
  const ask = async () => {
    const seen = await collect(await narrow.chat.completions.create({
      model: MOCK, messages: prompt(knobs({ chunks: 20, delay_us: 10000 })), stream: true,
    }));
    return [...seen.text.matchAll(/@#\d+:(\d+)/g)].map((found) => BigInt(found[1]));
  };
  const [first, second] = (await Promise.all([ask(), ask()]))
    .sort((one, other) => (one[0] < other[0] ? -1 : 1));
  assert.deepEqual([first.length, second.length], [20, 20]);
  assert.ok(first.at(-1) < second[0], "the second began before the first had ended");
});

test("an aborted stream frees its place at once", iop, async () => {
  // An hour of chunks: only an abort that reaches the provider lets the next request through.
  const stream = await narrow.chat.completions.create({
    model: MOCK, messages: prompt(knobs({ chunks: 360000, delay_us: 10000 })), stream: true,
  });
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) break;
  }
  stream.controller.abort();
  const answer = await narrow.chat.completions.create({
    model: MOCK, messages: prompt(knobs({ size: 10 })),
  }, { timeout: 5_000 });
  assert.equal(answer.choices[0].message.content.length, 10);
});
