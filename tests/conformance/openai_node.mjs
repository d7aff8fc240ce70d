// Drives a gateway with the official Node SDK, unchanged; prints one JSON object of what it saw.
// Usage: node openai_node.mjs BASE_URL API_KEY MODEL WRONG_KEY
import OpenAI from "openai";

const [baseURL, apiKey, model, wrongKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const seen = {};

const answer = await client.chat.completions.create({ model, messages, max_tokens: 8, temperature: 0 });
seen.content = answer.choices[0].message.content;
seen.usage = answer.usage;
seen.finish = answer.choices[0].finish_reason;

const stream = await client.chat.completions.create({
  model, messages, max_tokens: 8, temperature: 0, stream: true, stream_options: { include_usage: true },
});
seen.streamed = "";
for await (const chunk of stream) {
  seen.streamed += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.usage) seen.streamUsage = { ...chunk.usage, choices: chunk.choices.length };
}

const completion = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 4 });
seen.completion = completion.choices[0].text;

seen.models = (await client.models.list()).data.map((entry) => entry.id);

async function errorOf(call) {
  try {
    await call();
    return null;
  } catch (error) {
    return { class: error.constructor.name, status: error.status ?? null, code: error.code ?? null };
  }
}
const create = (options, body = {}) => () =>
  new OpenAI({ baseURL, apiKey, maxRetries: 0, ...options }).chat.completions.create({
    model, messages, max_tokens: 4, ...body,
  });
seen.errors = {
  wrongKey: await errorOf(create({ apiKey: wrongKey })),
  unknownModel: await errorOf(create({}, { model: "no-such-model" })),
  wrongType: await errorOf(create({}, { temperature: 9 })),
  timeout: await errorOf(create({ timeout: 1 })),
};

const controller = new AbortController();
const endless = await client.chat.completions.create(
  { model, messages, max_tokens: 400, stream: true }, { signal: controller.signal },
);
let chunks = 0;
try {
  for await (const _ of endless) if (++chunks === 3) controller.abort();
} catch (error) {
  seen.abortError = error.constructor.name;
}
seen.abortedAfter = chunks;

console.log(JSON.stringify(seen));
