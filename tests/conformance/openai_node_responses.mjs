// Drives /v1/responses with OpenAI's official Node SDK, unchanged, and prints one JSON object of what it saw.
//
// Usage: node openai_node_responses.mjs CONFIG, where CONFIG is JSON: {sdk, baseURL, key, model, mail}
// sdk: file URL of the SDK's entry module; mail: an e-mail address that the backend must not see.
const config = JSON.parse(process.argv[2]);
const { default: OpenAI } = await import(config.sdk);
const { baseURL, model, mail } = config;
const client = new OpenAI({ baseURL, apiKey: config.key, maxRetries: 0 });
const seen = {};

const answer = await client.responses.create({ model, instructions: "Be short", input: `write to ${mail}` });
seen.text = answer.output_text;
seen.status = answer.status;
seen.total = answer.usage.total_tokens;

const events = [];
for await (const event of await client.responses.create({ model, input: `write to ${mail}`, stream: true })) {
  events.push(event);
}
seen.numbered = events.every((event, at) => event.sequence_number === at);
seen.types = [...new Set(events.map((event) => event.type))];
seen.deltas = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");

// The SDK's own accumulator: it throws where events do not fit together.
const helper = client.responses.stream({ model, input: `write to ${mail}` });
seen.accumulated = (await helper.finalResponse()).output_text;

const tools = [{
  type: "function", name: "look", description: "Look something up", strict: true,
  parameters: { type: "object", properties: { about: { type: "string" } }, required: ["about"], additionalProperties: false },
}];
const input = [{ role: "user", content: `look up ${mail}` }];
const first = await client.responses.create({ model, tools, input, include: ["reasoning.encrypted_content"], store: false });
const call = first.output.find((item) => item.type === "function_call");
seen.about = JSON.parse(call.arguments).about;
input.push(...first.output, { type: "function_call_output", call_id: call.call_id, output: `${mail} is out` });
const runner = client.responses.stream({ model, tools, input, store: false });
seen.second = (await runner.finalResponse()).output_text;

const schema = {
  type: "object", properties: { city: { type: "string" }, population: { type: "number" } }, required: ["city", "population"],
  additionalProperties: false,
};
const parsed = await client.responses.parse({
  model, input: "Paris?", text: { format: { type: "json_schema", name: "city", schema, strict: true } },
});
seen.parsed = parsed.output_parsed;

async function errorOf(body) {
  try {
    await client.responses.create({ model, input: "hi", ...body });
    return null;
  } catch (error) {
    return [error.constructor.name, error.status ?? null, error.code ?? null, error.param ?? null];
  }
}
seen.errors = {
  stored: await errorOf({ store: true }), gone: await errorOf({ previous_response_id: "resp_1" }),
  hosted: await errorOf({ tools: [{ type: "web_search" }] }),
  unknownModel: await errorOf({ model: "no-such-model" }),
};
console.log(JSON.stringify(seen));
