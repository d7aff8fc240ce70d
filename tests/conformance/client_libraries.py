"""Drives a gateway with agent libraries, unchanged, and prints one JSON object for each of what it saw.

Usage: python client_libraries.py CONFIG LIBRARY..., run by the environment in which the libraries are (`make clients`).
CONFIG is JSON: {base, key, mail}: the gateway's address, an API key, an e-mail address that the backend must not see.
Each library asks a plain question, streams one, and runs one tool.
"""

import asyncio
import json
import os
import sys
from typing import Any

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["LANGSMITH_TRACING"] = "false"
ABOUT: list[str] = []


def look(about: str) -> str:
    """Look something up.

    Args:
        about: what to look up
    """
    ABOUT.append(about)
    return f"{about} is out"


async def openai_agents(base: str, key: str, mail: str) -> dict[str, Any]:
    from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI

    model = OpenAIResponsesModel("small", AsyncOpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0))
    plain = Agent(name="plain", instructions="Be short", model=model)
    tools = Agent(name="tools", model=model, tools=[function_tool(look)], model_settings=ModelSettings(max_tokens=64))
    streamed = Runner.run_streamed(plain, f"write to {mail}")
    deltas = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            deltas += event.data.delta
    run_streamed = Runner.run_streamed(tools, f"look up {mail}")
    async for _ in run_streamed.stream_events():
        pass
    return {
        "said": (await Runner.run(plain, f"write to {mail}")).final_output,
        "streamed": deltas,
        "tool": (await Runner.run(tools, f"look up {mail}")).final_output,
        "tool_streamed": run_streamed.final_output,
    }


async def pydantic_ai_responses(base: str, key: str, mail: str) -> dict[str, Any]:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return await _pydantic_ai(OpenAIResponsesModel("small", provider=OpenAIProvider(f"{base}/v1", key)), mail)


async def pydantic_ai_anthropic(base: str, key: str, mail: str) -> dict[str, Any]:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(base_url=base, api_key=key, max_retries=0)
    return await _pydantic_ai(AnthropicModel("small", provider=AnthropicProvider(anthropic_client=client)), mail)


async def _pydantic_ai(model: Any, mail: str) -> dict[str, Any]:
    from pydantic_ai import Agent

    plain, tools = Agent(model, instructions="Be short"), Agent(model, tools=[look])
    async with plain.run_stream(f"write to {mail}") as run:
        streamed = await run.get_output()
    async with tools.run_stream(f"look up {mail}") as run:
        tool_streamed = await run.get_output()
    return {
        "said": (await plain.run(f"write to {mail}")).output,
        "streamed": streamed,
        "tool": (await tools.run(f"look up {mail}")).output,
        "tool_streamed": tool_streamed,
    }


async def langchain_responses(base: str, key: str, mail: str) -> dict[str, Any]:
    from langchain_openai import ChatOpenAI

    return await _langchain(
        ChatOpenAI(model="small", base_url=f"{base}/v1", api_key=key, use_responses_api=True, max_retries=0), mail
    )


async def langchain_anthropic(base: str, key: str, mail: str) -> dict[str, Any]:
    from langchain_anthropic import ChatAnthropic

    return await _langchain(
        ChatAnthropic(model="small", base_url=base, api_key=key, max_tokens=64, max_retries=0), mail
    )


async def _langchain(model: Any, mail: str) -> dict[str, Any]:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    bound = model.bind_tools([tool(look)])

    async def loop(streams: bool) -> str:
        messages: list[Any] = [HumanMessage(f"look up {mail}")]
        while True:
            answer: Any = None
            if streams:
                async for piece in bound.astream(messages):
                    answer = piece if answer is None else answer + piece
            else:
                answer = await bound.ainvoke(messages)
            messages.append(answer)
            if not answer.tool_calls:
                return str(answer.text)
            messages += [ToolMessage(look(**call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls]

    streamed = ""
    async for piece in model.astream(f"write to {mail}"):
        streamed += piece.text
    return {
        "said": str((await model.ainvoke(f"write to {mail}")).text),
        "streamed": streamed,
        "tool": await loop(False),
        "tool_streamed": await loop(True),
    }


async def ollama(base: str, key: str, mail: str) -> dict[str, Any]:
    from ollama import AsyncClient

    client = AsyncClient(base, headers={"authorization": f"Bearer {key}"})
    assert [model.model for model in (await client.list()).models] == ["small"]
    assert (await client.show("small")).capabilities == ["completion"]

    def said(text: str) -> list[Any]:
        return [{"role": "user", "content": text}]

    async def loop(streams: bool) -> str:
        messages = said(f"look up {mail}")
        while True:
            if streams:
                pieces = [
                    piece.message async for piece in await client.chat("small", messages, tools=[look], stream=True)
                ]
                text = "".join(piece.content or "" for piece in pieces)
                calls = [call for piece in pieces for call in piece.tool_calls or ()]
                messages.append({"role": "assistant", "content": text, "tool_calls": calls})
            else:
                answer = (await client.chat("small", messages, tools=[look])).message
                text, calls = answer.content or "", list(answer.tool_calls or ())
                messages.append(answer)
            if not calls:
                return text
            for call in calls:
                told = look(**call.function.arguments)
                messages.append({"role": "tool", "tool_name": call.function.name, "content": told})

    streamed = ""
    async for piece in await client.chat("small", said(f"write to {mail}"), stream=True):
        streamed += piece.message.content or ""
    generated = await client.generate("small", f"write to {mail}")
    whole = await client.chat("small", said(f"write to {mail}"))
    assert generated.response == whole.message.content and whole.done and whole.eval_count
    assert (await client.embed("small", [mail])).embeddings == [[0.5, -1.0]]
    return {
        "said": whole.message.content,
        "streamed": streamed,
        "tool": await loop(False),
        "tool_streamed": await loop(True),
    }


async def langchain_embeddings(base: str, key: str, mail: str) -> dict[str, Any]:
    """With the setting that the refusal of token ids names; without it a tokenizer is fetched to make these."""
    from langchain_openai import OpenAIEmbeddings

    made = OpenAIEmbeddings(
        model="small", base_url=f"{base}/v1", api_key=key, max_retries=0, check_embedding_ctx_length=False
    )
    return {"vectors": await made.aembed_documents([mail]), "query": await made.aembed_query(mail)}


LIBRARIES = {each.__name__: each for each in (
    openai_agents, pydantic_ai_responses, pydantic_ai_anthropic, langchain_responses, langchain_anthropic, ollama,
    langchain_embeddings,
)}  # fmt: skip

if __name__ == "__main__":
    config = json.loads(sys.argv[1])
    for name in sys.argv[2:]:
        ABOUT.clear()
        seen = asyncio.run(LIBRARIES[name](**config))
        print(json.dumps({**seen, "about": ABOUT}))
