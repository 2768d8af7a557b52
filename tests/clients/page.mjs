// The server's page in a real Chromium, by Playwright.
// usage: node page.mjs http://127.0.0.1:PORT KEY CHROMIUM

import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';

const [base, key, executablePath] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
const page = await browser.newPage({ viewport: { width: 390, height: 780 } });
const problems = [];
page.on('pageerror', (error) => problems.push(String(error)));
page.on('request', (request) => {
  if (!request.url().startsWith(base)) problems.push(`fetches ${request.url()}`);
});

await page.goto(base);
await page.getByRole('button', { name: 'Settings' }).click();
await page.getByLabel('API key').fill(key);
await page.getByLabel('Most tokens').fill('60');
await page.getByRole('button', { name: 'Close' }).click();
await page.reload();

const box = page.getByLabel('Message');
await box.fill('<img src=x onerror=alert(1)> Who was **he**?');
await box.press('Enter');
await page.getByRole('button', { name: 'Regenerate' }).waitFor({ timeout: 60_000 });
const articles = page.locator('article');
assert.equal(await articles.count(), 2);
assert.equal(await page.locator('article img').count(), 0);
assert.equal(await page.locator('article details').evaluate((node) => node.open), false);
assert.ok((await page.locator('article.assistant').innerText()).length > 0);

await page.getByRole('button', { name: 'Regenerate' }).click();
await page.getByRole('button', { name: 'Stop' }).waitFor({ timeout: 10_000 }).catch(() => {});
await page.getByRole('button', { name: 'Regenerate' }).waitFor({ timeout: 60_000 });
assert.equal(await articles.count(), 2);

await page.getByRole('button', { name: 'Settings' }).click();
await page.getByLabel('Most tokens').fill('1500');
await page.getByRole('button', { name: 'Close' }).click();
await box.fill('Tell me all.');
await box.press('Enter');
await page.keyboard.press('Escape');
await page.getByText('(stopped)').or(page.getByRole('button', { name: 'Send' })).first().waitFor();
const overflow = await page.evaluate(
  () => document.documentElement.scrollWidth > document.documentElement.clientWidth);
assert.equal(overflow, false, 'the page is wider than a phone');

for (const scheme of ['dark', 'light']) {
  await page.emulateMedia({ colorScheme: scheme });
  const [back, text] = await page.evaluate(() => {
    const style = getComputedStyle(document.body);
    return [style.backgroundColor, style.color];
  });
  const sum = (color) => color.match(/\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);
  assert.ok(scheme === 'dark' ? sum(back) < sum(text) : sum(back) > sum(text), scheme);
}
await page.getByText(/memory .* of .*, read /).first().waitFor({ timeout: 10_000 });
assert.deepEqual(problems, []);
await browser.close();
console.log('ok    page: chat, regenerate, stop, settings, phone, dark and light');
