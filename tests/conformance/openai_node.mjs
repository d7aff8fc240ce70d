// Drives a gateway with OpenAI's official Node SDK, unchanged, and prints one JSON object of what it saw.
//
// Usage: node openai_node.mjs CONFIG, where CONFIG is JSON: {sdk, baseURL, key, denied, wrongKey, model, slow, failing}
// sdk: file URL of the SDK's entry module; key, denied, wrongKey: API keys that work, that policy refuses, that nobody
// has; model, slow, failing: models whose backend answers, answers slowly, answers 500.
const config = JSON.parse(process.argv[2]);
const { default: OpenAI } = await import(config.sdk);
const { baseURL, model } = config;
const client = new OpenAI({ baseURL, apiKey: config.key, maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const seen = {};

const { data: answer, response } = await client.chat.completions
  .create({ model, messages, max_tokens: 8, temperature: 0 })
  .withResponse();
seen.answer = {
  content: answer.choices[0].message.content,
  finish: answer.choices[0].finish_reason,
  usage: answer.usage,
  requestId: answer._request_id,
  region: response.headers.get("x-domicile-region"),
};

const stream = await client.chat.completions.create({
  model, messages, stream: true, stream_options: { include_usage: true },
});
seen.stream = { content: "", roles: [], chunksWithUsage: [] };
for await (const chunk of stream) {
  const delta = chunk.choices[0]?.delta;
  seen.stream.content += delta?.content ?? "";
  if (delta?.role) seen.stream.roles.push(delta.role);
  if (chunk.usage) seen.stream.chunksWithUsage.push({ choices: chunk.choices.length, total: chunk.usage.total_tokens });
}

// The SDK's own accumulator: it throws where chunks do not fit together.
const runner = client.chat.completions.stream({ model, messages });
seen.accumulated = (await runner.finalChatCompletion()).choices[0].message.content;

seen.completion = (await client.completions.create({ model, prompt: "Once upon a time" })).choices[0].text;
seen.completionStream = "";
for await (const chunk of await client.completions.create({ model, prompt: "Once", stream: true })) {
  seen.completionStream += chunk.choices[0]?.text ?? "";
}

seen.models = (await client.models.list()).data.map((entry) => entry.id).sort();
seen.model = (await client.models.retrieve(model)).id;

async function errorOf(body, options = {}) {
  try {
    const errors = new OpenAI({ baseURL, apiKey: config.key, maxRetries: 0, ...options });
    await errors.chat.completions.create({ model, messages, ...body });
    return null;
  } catch (error) {
    return [error.constructor.name, error.status ?? null, error.code ?? null];
  }
}
seen.errors = {
  wrongKey: await errorOf({}, { apiKey: config.wrongKey }),
  denied: await errorOf({}, { apiKey: config.denied }),
  unknownModel: await errorOf({ model: "no-such-model" }),
  outOfRange: await errorOf({ temperature: 9 }),
  blocked: await errorOf({ messages: [{ role: "user", content: "key AKIAIOSFODNN7EXAMPLE" }] }),
  tooMuch: await errorOf({ max_tokens: 9_000_000 }),
  failing: await errorOf({ model: config.failing }),
  timeout: await errorOf({ model: config.slow }, { timeout: 200 }),
  nobodyThere: await errorOf({}, { baseURL: "http://127.0.0.1:9/v1" }),
};

const controller = new AbortController();
const left = await client.chat.completions.create(
  { model: config.slow, messages, stream: true }, { signal: controller.signal },
);
seen.chunksBeforeLeaving = 0;
for await (const _ of left) if (++seen.chunksBeforeLeaving === 3) controller.abort();

console.log(JSON.stringify(seen));
