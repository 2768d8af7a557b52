// Runs llama.cpp on given tokens and writes figures of the run as JSON.
// Usage: node llama.mjs REQUEST.json
// {model, threads, and either prompts, logits or prompt, forced, stats}
//   prompts  lists of ids, each from an empty context
//   logits   file for float32 logits of every position of every prompt, rows of the vocabulary
//   prompt   ids, evaluated at once
//   forced   ids that follow, whatever the logits say; each is evaluated by itself
//   stats    file for times in seconds and counts of tokens
// Standard output gets the likeliest token after each step, the first one as soon as it is known.
import {readFileSync, writeFileSync} from "node:fs";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const request = JSON.parse(readFileSync(process.argv[2], "utf8"));
const started = performance.now();
const seconds = (from) => (performance.now() - from) / 1000;

const llama = await getLlama({
    gpu: false, build: "never", maxThreads: request.threads, progressLogs: false,
    logLevel: LlamaLogLevel.info, logger: (_, text) => process.stderr.write(text + "\n")
});
const model = await llama.loadModel({
    modelPath: request.model, gpuLayers: 0, useMmap: true, ignoreMemorySafetyChecks: true
});
const length = request.logits ? Math.max(...request.prompts.map((prompt) => prompt.length)) + 1
    : request.prompt.length + request.forced.length + 1;
const context = await model.createContext({
    contextSize: length, batchSize: Math.min(length, 512),
    threads: {ideal: request.threads, min: request.threads}, ignoreMemorySafetyChecks: true
});
const sequence = context.getSequence();
const loadSeconds = seconds(started);

const greedy = {temperature: 0};
if (request.logits) await writeLogits();
else await measure();
await llama.dispose();

async function writeLogits() {
    const wanted = {generateNext: {logits: true, options: greedy}};
    const rows = [];
    for (const prompt of request.prompts) {
        await sequence.clearHistory();
        const results = await sequence.controlledEvaluate(prompt.map((id) => [id, wanted]));
        for (const {next} of results) {
            const row = new Float32Array(next.logits.size);
            for (const [id, logit] of next.logits) row[id] = logit;
            rows.push(Buffer.from(row.buffer));
        }
    }
    writeFileSync(request.logits, Buffer.concat(rows));
}

async function next(ids) {
    const last = [ids.at(-1), {generateNext: {token: true, options: greedy}}];
    const results = await sequence.controlledEvaluate([...ids.slice(0, -1), last]);
    const token = results.at(-1).next.token;
    process.stdout.write(`${token}\n`);
}

async function measure() {
    const prompt = performance.now();
    await next(request.prompt);
    const prefillSeconds = seconds(prompt);
    const decode = performance.now();
    for (const id of request.forced) await next([id]);
    writeFileSync(request.stats, JSON.stringify({
        load_s: loadSeconds, prefill_s: prefillSeconds, decode_s: seconds(decode),
        prompt_tokens: request.prompt.length, generated_tokens: request.forced.length + 1,
        system: llama.systemInfo
    }));
}
