// Takes a lock with node-redlock: take.mjs URL node-redlock KEY.
import Redis from 'ioredis';
import Redlock from 'redlock';
import { readFileSync } from 'fs';
const [url, , key] = process.argv.slice(2);
const redis = new Redis(url);
const locks = new (Redlock.default ?? Redlock)([redis], { retryCount: 0 });
locks.on('error', () => {});
const version = JSON.parse(readFileSync(new URL('node_modules/redlock/package.json', import.meta.url))).version;
const taken = await locks.acquire([key], 60000).then(() => true, () => false);
console.log('node-redlock', version, taken ? 'taken' : 'busy');
redis.disconnect();
