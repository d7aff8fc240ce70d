// Drives a gateway with the AI SDK, unchanged, and prints one JSON object of what it saw.
//
// Usage: node ai_sdk.mjs CONFIG, where CONFIG is JSON: {modules, base, key, mail, provider, store}
// modules: file URL of the folder in which the packages are; mail: an e-mail address that the backend must not see.
// provider: openai (its default, the Responses API), chat or anthropic. store: as providerOptions.openai.store.
const config = JSON.parse(process.argv[2]);
globalThis.AI_SDK_LOG_WARNINGS = false; // on the output, which is read
const load = (name) => import(`${config.modules}/${name}/dist/index.mjs`);
const { generateText, streamText, generateObject, jsonSchema, tool, stepCountIs } = await load("ai");
const { base, key, mail, store } = config;

async function modelOf(provider) {
  if (provider === "anthropic") {
    const { createAnthropic } = await load("@ai-sdk/anthropic");
    return createAnthropic({ baseURL: `${base}/v1`, apiKey: key })("small");
  }
  const { createOpenAI } = await load("@ai-sdk/openai");
  const openai = createOpenAI({ baseURL: `${base}/v1`, apiKey: key });
  return provider === "chat" ? openai.chat("small") : openai("small");
}

const model = await modelOf(config.provider);
const providerOptions = store === undefined ? {} : { openai: { store } };
const common = { model, providerOptions, maxRetries: 0 };
const about = [];
const tools = {
  look: tool({
    description: "Look something up",
    inputSchema: jsonSchema({
      type: "object", properties: { about: { type: "string" } }, required: ["about"], additionalProperties: false,
    }),
    execute: async (given) => { about.push(given.about); return `${given.about} is out`; },
  }),
};

const seen = {};
seen.said = (await generateText({ ...common, system: "Be short", prompt: `write to ${mail}` })).text;

const stream = streamText({ ...common, prompt: `write to ${mail}`, onError: ({ error }) => { throw error; } });
seen.streamed = "";
for await (const piece of stream.textStream) seen.streamed += piece;

try {
  seen.tool = (await generateText({ ...common, prompt: `look up ${mail}`, tools, stopWhen: stepCountIs(3) })).text;
} catch (error) {
  seen.toolError = [error.statusCode, error.data?.error?.param, error.data?.error?.message.includes("store: false")];
}

const first = await generateText({ ...common, prompt: "one" });
try {
  const messages = [{ role: "user", content: "one" }, ...first.response.messages, { role: "user", content: `to ${mail}` }];
  seen.second = (await generateText({ ...common, messages })).text;
} catch (error) {
  seen.secondError = [error.statusCode, error.data?.error?.param, error.data?.error?.message.includes("store: false")];
}
if (config.provider === "openai" && store !== false && !seen.secondError) {
  const previousResponseId = first.providerMetadata.openai.responseId;
  seen.resumed = (await generateText({ ...common, prompt: "two", providerOptions: { openai: { previousResponseId } } })).text;
}

const schema = jsonSchema({
  type: "object", properties: { city: { type: "string" }, population: { type: "number" } },
  required: ["city", "population"], additionalProperties: false,
});
if (config.provider !== "anthropic") {
  seen.object = (await generateObject({ ...common, schema, prompt: "Paris?" })).object;
}
seen.about = about;
console.log(JSON.stringify(seen));
