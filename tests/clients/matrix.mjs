// The public clients' own accumulators over every combination of what an answer may hold (thought,
// text, calls) and how it may end (by itself, by a stop string, cut, by an error), against
// scripted_server. What a stream makes must be the answer that is not streamed; an error must be
// seen; what was answered must be accepted when it comes back.
// usage: node matrix.mjs http://127.0.0.1:PORT

import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, streamText, tool } from 'ai';
import OpenAI from 'openai';

const [base] = process.argv.slice(2);
const options = { baseURL: `${base}/v1`, apiKey: 'none', maxRetries: 0 };
const openai = new OpenAI(options);
const anthropic = new Anthropic({ ...options, baseURL: base });
const model = 'scripted';
const parameters = { type: 'object', properties: { a: { type: 'string' } } };

const call = (name, inside) => `<|open|>call tool="${name}" index="1"<|sep|>${inside}<|close|>call<|sep|>`;
const argument = (text) => `<|open|>argument key="a" type="string"<|sep|>${text}<|close|>argument<|sep|>`;
const json = (text) => `<|open|>json type="object"<|sep|>${text}<|close|>json<|sep|>`;
const calls = {
  none: '',
  one: call('look', argument('x "y"\nz')),
  two: call('look', '') + call('look', argument('')),
  odd: call('look', json('null')) + call('look', json('[1]')),
  unknown: call('other', argument('x')),
};

// Every scene: {name, markup, limit, error}.
function* scenes() {
  for (const thought of ['', 'Hm, let me see.']) {
    for (const text of ['', 'It is so.', 'It is STOP not so.']) {
      for (const [kind, made] of Object.entries(calls)) {
        let markup = `${thought}<|close|>think<|sep|>`;
        if (text) markup += `<|open|>response<|sep|>${text}<|close|>response<|sep|>`;
        if (made) markup += `<|open|>tools<|sep|>${made}<|close|>tools<|sep|>`;
        const name = `${thought ? 'thought' : '-'}, ${text || '-'}, calls: ${kind}`;
        const whole = `${markup}<|close|>message<|sep|><|end_of_msg|>`;
        yield { name, markup: whole, limit: 1000 };
        // An answer that has stopped already cannot fail.
        if (!text.includes('STOP')) {
          yield { name: `${name}, error`, markup, limit: 1000, error: 'the drive failed' };
        }
        yield { name: `${name}, cut at 12`, markup: whole, limit: 12 };
        yield { name: `${name}, cut at 60`, markup: whole, limit: 60 };
      }
    }
  }
}

const prompt = (scene) =>
  `SCRIPT${JSON.stringify({ markup: scene.markup, error: scene.error })}TPIRCS`;

// Without what is drawn at random for each answer, or is the time.
const comparable = (value) => {
  if (Array.isArray(value)) return value.map(comparable);
  if (value === null || typeof value !== 'object') return value;
  const drawn = ['id', 'call_id', 'created', 'created_at'];
  // What the helpers add.
  const added = ['_request_id', 'parsed', 'parsed_arguments', 'parsed_output', 'output_parsed'];
  return Object.fromEntries(Object.entries(value)
    .filter(([key, item]) => !drawn.includes(key) && !added.includes(key) && item !== undefined)
    .map(([key, item]) => [key, comparable(item)]));
};

const chatTools = [{ type: 'function', function: { name: 'look', parameters } }];
const aiTools = { look: tool({ description: 'Looks.', inputSchema: jsonSchema(parameters) }) };

const viaAi = (languageModel) => {
  const request = (scene) => ({ model: languageModel, prompt: prompt(scene), tools: aiTools,
    maxOutputTokens: scene.limit, stopSequences: scene.stop, maxRetries: 0 });
  const summary = async (result) => ({ text: await result.text,
    reasoning: await result.reasoningText, finish: await result.finishReason,
    calls: (await result.toolCalls).map((made) => [made.toolName, made.input]),
    tokens: (await result.usage).outputTokens });
  return {
    whole: async (scene) => summary(await generateText(request(scene))),
    async streamed(scene) {
      let failure;
      const result = streamText({ ...request(scene), onError: ({ error }) => { failure = error; } });
      await result.consumeStream();
      if (failure) throw failure instanceof Error ? failure : new Error(JSON.stringify(failure));
      return summary(result);
    },
    text: (answer) => answer.text,
  };
};

const clients = {
  'openai chat': {
    request: (scene) => ({ model, max_tokens: scene.limit, stop: ['STOP'], tools: chatTools,
      messages: [{ role: 'user', content: prompt(scene) }] }),
    async whole(scene) {
      const answer = await openai.chat.completions.create(this.request(scene));
      // The helper keeps only the last piece of a field that it does not know.
      delete answer.choices[0].message.reasoning_content;
      return answer.choices;
    },
    async streamed(scene) {
      const answer = await openai.chat.completions.stream(this.request(scene)).finalChatCompletion();
      delete answer.choices[0].message.reasoning_content;
      return answer.choices;
    },
    text: (answer) => answer[0].message.content,
    async back(scene, answer) {
      const { message } = answer[0];
      const results = (message.tool_calls ?? []).map((made) => {
        assert.equal(typeof JSON.parse(made.function.arguments), 'object');
        return { role: 'tool', tool_call_id: made.id, content: 'done' };
      });
      const request = this.request(scene);
      request.messages.unshift({ role: 'user', content: 'x' }, message, ...results);
      await openai.chat.completions.create(request);
    },
  },
  'openai responses': {
    request: (scene) => ({ model, max_output_tokens: scene.limit, input: prompt(scene),
      tools: [{ type: 'function', name: 'look', parameters, strict: false }] }),
    whole: async (scene) => openai.responses.create(clients['openai responses'].request(scene)),
    streamed: async (scene) =>
      openai.responses.stream(clients['openai responses'].request(scene)).finalResponse(),
    text: (answer) => answer.output_text,
    async back(scene, answer) {
      const results = answer.output.filter((item) => item.type === 'function_call').map((made) => {
        assert.equal(typeof JSON.parse(made.arguments), 'object');
        return { type: 'function_call_output', call_id: made.call_id, output: 'done' };
      });
      const request = this.request(scene);
      request.input = [...answer.output, ...results, { role: 'user', content: prompt(scene) }];
      await openai.responses.create(request);
    },
  },
  anthropic: {
    request: (scene) => ({ model, max_tokens: scene.limit, stop_sequences: ['STOP'],
      tools: [{ name: 'look', input_schema: parameters }],
      messages: [{ role: 'user', content: prompt(scene) }] }),
    whole: async (scene) => anthropic.messages.create(clients.anthropic.request(scene)),
    streamed: async (scene) =>
      anthropic.messages.stream(clients.anthropic.request(scene)).finalMessage(),
    text: (answer) => answer.content.filter((block) => block.type === 'text')
      .map((block) => block.text).join(''),
    async back(scene, answer) {
      const results = answer.content.filter((block) => block.type === 'tool_use').map((made) => ({
        type: 'tool_result', tool_use_id: made.id, content: 'done' }));
      const request = this.request(scene);
      if (answer.content.length === 0) return;
      request.messages.unshift({ role: 'user', content: 'x' },
        { role: 'assistant', content: answer.content });
      request.messages.at(-1).content = [...results, { type: 'text', text: prompt(scene) }];
      await anthropic.messages.create(request);
    },
  },
  'ai, openai-compatible': viaAi(createOpenAICompatible(
    { name: 'thimble', includeUsage: true, ...options })(model)),
  'ai, openai chat': viaAi(createOpenAI(options).chat(model)),
  'ai, openai responses': viaAi(createOpenAI(options)(model)),
  'ai, anthropic': viaAi(createAnthropic(options)(model)),
};

let failed = 0;
for (const [name, client] of Object.entries(clients)) {
  let count = 0;
  let shown = 0;
  for (const scene of scenes()) {
    try {
      if (scene.error) {
        await assert.rejects(client.whole(scene), /drive failed/);
        await assert.rejects(client.streamed(scene), /drive failed/);
      } else {
        const whole = await client.whole(scene);
        assert.deepEqual(comparable(await client.streamed(scene)), comparable(whole));
        const text = client.text(whole) ?? '';
        assert.ok('It is STOP not so.'.startsWith(text) || 'It is so.'.startsWith(text), text);
        if (client.back) await client.back(scene, whole);
      }
      ++count;
    } catch (error) {
      ++failed;
      if (++shown <= 3) console.log(`FAIL  ${name}: ${scene.name}: ${error.stack}`);
    }
  }
  console.log(`ok    ${name}: ${count} scenes`);
}
process.exit(failed === 0 ? 0 : 1);
