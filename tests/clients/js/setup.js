// Where the tests find what they drive; `scripts/clients` sets the variables (see ../python/conftest.py).
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

export const REAL = "smollm2";
export const MOCK = "mock-model";
export const direct = process.env.IOP_TEST_DIRECT === "1";

/** Options for a test that needs IOP itself, not merely a provider. */
export const iop = { skip: direct && "needs IOP itself" };

function variable(name) {
  const url = process.env[name];
  if (!url) throw new Error(`${name} is not set: run the tests through scripts/clients`);
  return url;
}

export const realUrl = variable(direct ? "IOP_TEST_SMOL_URL" : "IOP_TEST_URL");
export const mockUrl = variable(direct ? "IOP_TEST_MOCK_URL" : "IOP_TEST_URL");
export const narrowUrl = direct ? mockUrl : variable("IOP_TEST_NARROW_URL");

/** The official client; retries would hide faults. */
export const openai = (url) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0, timeout: 120_000 });

/** A provider of the AI SDK. */
export const compatible = (url, options = {}) =>
  createOpenAICompatible({ name: "iop", baseURL: `${url}/v1`, ...options });

export const prompt = (content) => [{ role: "user", content }];

/** A prompt that tells the scripted provider how to answer (see bench/src/provider/knobs.rs). */
export const knobs = (wanted) =>
  `[[bench ${Object.entries(wanted).map(([name, value]) => `${name}=${value}`).join(" ")}]] hello`;
