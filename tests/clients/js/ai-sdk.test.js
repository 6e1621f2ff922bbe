// The AI SDK with its provider for OpenAI-compatible servers.
import assert from "node:assert/strict";
import test from "node:test";
import { embedMany, generateText, streamText } from "ai";
import { compatible, iop, knobs, MOCK, mockUrl, REAL, realUrl } from "./setup.js";

const options = { maxRetries: 0 };

test("a real answer has text, finish reason and usage", async () => {
  const answer = await generateText({
    ...options, model: compatible(realUrl)(REAL), prompt: "Name three colours.",
    maxOutputTokens: 8, temperature: 0,
  });
  assert.ok(answer.text.trim());
  assert.equal(answer.finishReason, "length");
  assert.equal(answer.usage.outputTokens, 8);
});

test("a real stream arrives in pieces and ends with its reason", async () => {
  const answer = streamText({
    ...options, model: compatible(realUrl)(REAL), prompt: "Name three colours.",
    maxOutputTokens: 8, temperature: 0,
  });
  let pieces = 0;
  for await (const piece of answer.textStream) pieces += piece ? 1 : 0;
  assert.ok(pieces > 1, `${pieces} pieces`);
  assert.equal(await answer.finishReason, "length");
});

test("a stream brings usage where the provider gives it", async () => {
  const model = compatible(mockUrl, { includeUsage: true })(MOCK);
  const answer = streamText({ ...options, model, prompt: knobs({ chunks: 6 }) });
  assert.equal((await answer.text).match(/@#/g).length, 6);
  assert.equal(await answer.finishReason, "stop");
  assert.equal((await answer.usage).outputTokens, 6);
});

test("a stream without usage is no fault", async () => {
  const model = compatible(mockUrl, { includeUsage: true })(MOCK);
  const answer = streamText({ ...options, model, prompt: knobs({ chunks: 6, no_usage: 1 }) });
  assert.equal((await answer.text).match(/@#/g).length, 6);
  assert.equal(await answer.finishReason, "stop");
});

test("embeddings of several texts", async () => {
  const model = compatible(mockUrl).embeddingModel(MOCK);
  const { embeddings } = await embedMany({ ...options, model, values: ["[[bench dims=8]]", "b"] });
  assert.deepEqual(embeddings[1], Array.from({ length: 8 }, (_, at) => 1 + at / 64));
});

test("an unknown model is an error that names it", iop, async () => {
  const model = compatible(mockUrl)("no-such-model");
  await assert.rejects(generateText({ ...options, model, prompt: "hi" }), (error) => {
    assert.equal(error.statusCode, 404);
    assert.match(error.message, /no-such-model/);
    return true;
  });
});

test("a provider error keeps its status", async () => {
  const model = compatible(mockUrl)(MOCK);
  await assert.rejects(
    generateText({ ...options, model, prompt: knobs({ status: 429 }) }),
    (error) => {
      assert.equal(error.statusCode, 429);
      assert.match(error.responseBody, /scripted/);
      return true;
    },
  );
});
