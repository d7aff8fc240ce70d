// Drives responses that are kept with OpenAI's official Node SDK, unchanged, and prints one JSON object of what it saw.
//
// Usage: node openai_node_kept.mjs CONFIG, where CONFIG is JSON: {sdk, baseURL, key, model, mail}
// sdk: file URL of the SDK's entry module; mail: an e-mail address that the backend must not see.
const config = JSON.parse(process.argv[2]);
const { default: OpenAI } = await import(config.sdk);
const { baseURL, model, mail } = config;
const client = new OpenAI({ baseURL, apiKey: config.key, maxRetries: 0 });
const seen = {};

const first = await client.responses.create({ model, input: `I am ${mail}` });
seen.store = first.store;
seen.same = (await client.responses.retrieve(first.id)).output_text === first.output_text;

const streamed = client.responses.stream({ model, input: "and?", previous_response_id: first.id });
const second = await streamed.finalResponse();
seen.second = second.output_text;
seen.items = [];
for await (const item of client.responses.inputItems.list(second.id, { limit: 2, order: "asc" })) {
  seen.items.push(item.content[0].text);
}

let later = await client.responses.create({ model, input: "later", background: true, previous_response_id: second.id });
seen.queued = later.status;
while (later.status === "queued" || later.status === "in_progress") {
  await new Promise((resolve) => setTimeout(resolve, 50));
  later = await client.responses.retrieve(later.id);
}
seen.later = [later.status, later.output_text];
seen.cancelled = (await client.responses.cancel(later.id)).status;
await client.responses.delete(first.id);

async function errorOf(call) {
  try {
    await call();
    return null;
  } catch (error) {
    return [error.constructor.name, error.status ?? null, error.code ?? null, error.param ?? null];
  }
}
seen.errors = {
  deleted: await errorOf(() => client.responses.retrieve(first.id)),
  broken: await errorOf(() => client.responses.create({ model, input: "x", previous_response_id: second.id })),
  notInBackground: await errorOf(() => client.responses.cancel(second.id)),
  replay: await errorOf(() => client.responses.retrieve(second.id, { stream: true })),
};
console.log(JSON.stringify(seen));
