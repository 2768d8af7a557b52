// The public clients of the APIs, against a server with the embedded model.
// usage: node clients.mjs http://127.0.0.1:PORT KEY

import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, streamText } from 'ai';
import OpenAI from 'openai';

const [base, key] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: `${base}/v1`, apiKey: key, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: base, apiKey: key, maxRetries: 0 });
const provider = createOpenAICompatible({ name: 'thimble', baseURL: `${base}/v1`, apiKey: key });
const messages = [{ role: 'user', content: 'Who was the first man?' }];
const tools = [{ type: 'function', function: { name: 'look', description: 'Looks something up.',
  parameters: { type: 'object', properties: { what: { type: 'string' } } } } }];
const plain = { model: 'mini', messages, max_tokens: 30, seed: 4, reasoning_effort: 'none' };

const metric = async (name) => {
  const response = await fetch(`${base}/metrics`, { headers: { 'x-api-key': key } });
  const line = (await response.text()).split('\n').find((text) => text.startsWith(`${name} `));
  return Number(line?.split(' ')[1] ?? 0);
};

const tests = {
  async 'openai: models'() {
    const list = await openai.models.list();
    assert.equal(list.data[0].id, 'mini');
  },
  async 'openai: chat, whole and streamed, is the same text'() {
    const whole = await openai.chat.completions.create(plain);
    assert.ok(whole.choices[0].message.content.length > 0);
    assert.ok(whole.usage.completion_tokens > 0);
    let text = '';
    let usage;
    const stream = await openai.chat.completions.create(
      { ...plain, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async 'openai: the stream helper'() {
    const final = await openai.chat.completions.stream(plain).finalChatCompletion();
    assert.ok(['stop', 'length'].includes(final.choices[0].finish_reason));
  },
  async 'openai: reasoning, tools and probabilities'() {
    const answer = await openai.chat.completions.create(
      { ...plain, tools, reasoning_effort: 'low', logprobs: true, top_logprobs: 2 });
    const choice = answer.choices[0];
    assert.equal(typeof choice.message.reasoning_content, 'string');
    assert.equal(choice.finish_reason === 'tool_calls', (choice.message.tool_calls ?? []).length > 0);
    assert.ok(Array.isArray(choice.logprobs.content));
  },
  async 'openai: a tool call and its result in the conversation'() {
    await openai.chat.completions.create({ ...plain, tools, messages: [...messages,
      { role: 'assistant', content: null, tool_calls: [{ id: 'call_1', type: 'function',
        function: { name: 'look', arguments: '{"what":"Adam"}' } }] },
      { role: 'tool', tool_call_id: 'call_1', content: 'A man.' }] });
  },
  async 'openai: JSON by schema'() {
    const answer = await openai.chat.completions.create({ ...plain, max_tokens: 100,
      response_format: { type: 'json_schema', json_schema: { name: 'man', strict: true,
        schema: { type: 'object', additionalProperties: false, required: ['name', 'old'],
          properties: { name: { enum: ['Adam', 'Noah'] }, old: { type: 'boolean' } } } } } });
    const value = JSON.parse(answer.choices[0].message.content);
    assert.ok(['Adam', 'Noah'].includes(value.name));
    assert.equal(typeof value.old, 'boolean');
  },
  async 'openai: stop strings'() {
    const whole = await openai.chat.completions.create(plain);
    const text = whole.choices[0].message.content;
    const stop = text.slice(5, 8);
    const cut = await openai.chat.completions.create({ ...plain, stop: [stop] });
    assert.equal(cut.choices[0].message.content, text.slice(0, text.indexOf(stop)));
    assert.equal(cut.choices[0].finish_reason, 'stop');
  },
  async 'openai: an aborted stream ends the work'() {
    const stream = await openai.chat.completions.create(
      { ...plain, max_tokens: 1900, temperature: 2, stream: true });
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content) break;
    }
    stream.controller.abort();
    for (let wait = 0; wait < 40 && (await metric('thimble_answers_open')) > 0; ++wait) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    assert.equal(await metric('thimble_answers_open'), 0);
  },
  async 'openai: several answers, each as alone with its seed'() {
    const both = await openai.chat.completions.create({ ...plain, n: 2 });
    for (const choice of both.choices) {
      const alone = await openai.chat.completions.create({ ...plain, seed: 4 + choice.index });
      assert.equal(choice.message.content, alone.choices[0].message.content);
    }
  },
  async 'openai: penalties and biases'() {
    const whole = await openai.chat.completions.create({ ...plain, temperature: 0 });
    const tokens = await (await fetch(`${base}/tokenize`, { method: 'POST',
      headers: { 'x-api-key': key }, body: JSON.stringify({ content: ' the' }) })).json();
    const biased = await openai.chat.completions.create({ ...plain, temperature: 0, max_tokens: 5,
      logit_bias: { [tokens.tokens[0]]: 100 } });
    assert.equal(biased.choices[0].message.content, ' the'.repeat(5));
    const varied = await openai.chat.completions.create({ ...plain, temperature: 0, max_tokens: 5,
      logit_bias: { [tokens.tokens[0]]: 10 }, frequency_penalty: 2, presence_penalty: 2 });
    assert.notEqual(varied.choices[0].message.content, biased.choices[0].message.content);
    assert.notEqual(varied.choices[0].message.content, whole.choices[0].message.content);
  },
  async 'openai: errors'() {
    await assert.rejects(openai.chat.completions.create({ ...plain, n: 100 }),
      (error) => error instanceof OpenAI.BadRequestError);
    const long = [{ role: 'user', content: 'word '.repeat(5000) }];
    await assert.rejects(openai.chat.completions.create({ ...plain, messages: long }),
      (error) => error.code === 'context_length_exceeded');
    const stranger = new OpenAI({ baseURL: `${base}/v1`, apiKey: 'wrong', maxRetries: 0 });
    await assert.rejects(stranger.models.list(),
      (error) => error instanceof OpenAI.AuthenticationError);
  },
  async 'openai: completions and responses'() {
    const text = await openai.completions.create({ model: 'mini', prompt: 'In the', max_tokens: 5 });
    assert.ok(text.choices[0].text.length > 0);
    const whole = await openai.responses.create(
      { model: 'mini', input: 'Hello', max_output_tokens: 200, reasoning: { effort: 'none' } });
    assert.equal(typeof whole.output_text, 'string');
    let last;
    const stream = await openai.responses.create({ model: 'mini', input: 'Hello', stream: true,
      max_output_tokens: 20 });
    for await (const event of stream) last = event.type;
    assert.ok(['response.completed', 'response.incomplete'].includes(last));
  },
  async 'anthropic: messages, whole and streamed'() {
    const request = { model: 'mini', max_tokens: 40, messages, thinking: { type: 'disabled' } };
    const whole = await anthropic.messages.create(request);
    assert.equal(whole.content[0].type, 'text');
    assert.ok(whole.usage.output_tokens > 0);
    const final = await anthropic.messages.stream({ ...request, max_tokens: 60 }).finalMessage();
    assert.ok(['end_turn', 'max_tokens'].includes(final.stop_reason));
    const count = await anthropic.messages.countTokens({ model: 'mini', messages });
    assert.ok(count.input_tokens > 10);
  },
  async 'anthropic: errors'() {
    await assert.rejects(
      anthropic.messages.create({ model: 'mini', max_tokens: 5,
        messages: [{ role: 'user', content: 'word '.repeat(5000) }] }),
      (error) => error instanceof Anthropic.BadRequestError && /prompt is too long/.test(error.message));
  },
  async 'ai: text, whole and streamed'() {
    const model = provider('mini');
    const whole = await generateText({ model, prompt: 'Who was the first man?',
      maxOutputTokens: 200, maxRetries: 0 });
    assert.ok(['stop', 'length'].includes(whole.finishReason));
    const stream = streamText({ model, prompt: 'Who was the first man?', maxOutputTokens: 200,
      maxRetries: 0 });
    let text = '';
    for await (const part of stream.textStream) text += part;
    assert.equal(text, await stream.text);
    assert.ok(['stop', 'length'].includes(await stream.finishReason));
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log(`ok    ${name}`);
  } catch (error) {
    ++failed;
    console.log(`FAIL  ${name}: ${error.stack}`);
  }
}
process.exit(failed === 0 ? 0 : 1);
