// The real node-redisson behind a part of the line protocol of ../../redisson/src/main/java/interop/Peer.java:
//
//   node peer.js [--mode=single|cluster] [--watchdog=MS] [--ids=number|uuid] [--events=pubsub|streams] HOST:PORT...
//
//   --ids     the client id of a lock: the number of its thread, as in Java (the default), or node-redisson's own default, a UUID
//   --events  node-redisson's eventAdapter
//
// A thread is a chain of calls. It has one lock object for each name.
//
//   lock NAME [LEASE_MS]             lock                                            -
//   trylock NAME WAIT_MS [LEASE_MS]  tryLock                                true|false
//   unlock NAME                      unlock                                          -
//   force NAME                       forceUnlock                            true|false
//   locked NAME                      isLocked                               true|false
//   field NAME                       the owner field of this thread            a field
//   hammer NAME FILE MS              as in Peer.java                          a number
'use strict';

const fs = require('node:fs/promises');
const readline = require('node:readline');
const { Redisson } = require('node-redisson');

function parse(args) {
  const options = { mode: 'single', watchdog: '30000', ids: 'number', events: 'pubsub' };
  const nodes = [];
  for (const arg of args) {
    const option = /^--(\w+)=(.*)$/.exec(arg);
    if (option) {
      options[option[1]] = option[2];
    } else {
      const [host, port] = arg.split(':');
      nodes.push({ host, port: Number(port) });
    }
  }
  return { options, nodes };
}

const { options, nodes } = parse(process.argv.slice(2));
const redisson = new Redisson({
  redis: options.mode === 'cluster' ? { clusters: nodes } : { options: nodes[0] },
  lockWatchdogTimeout: BigInt(options.watchdog),
  eventAdapter: options.events,
});

const decode = (text) => decodeURIComponent(text.replace(/\+/g, ' '));
const lease = (text) => (text === undefined ? true : Number(text));

class Thread {
  static all = new Map();

  static named(name) {
    if (!Thread.all.has(name)) {
      Thread.all.set(name, new Thread(String(Thread.all.size + 1)));
    }
    return Thread.all.get(name);
  }

  constructor(id) {
    this.id = id;
    this.locks = new Map();
    this.last = Promise.resolve(); // of the calls so far
  }

  lock(name) {
    if (!this.locks.has(name)) {
      this.locks.set(name, redisson.getLock(name, options.ids === 'uuid' ? undefined : this.id));
    }
    return this.locks.get(name);
  }

  async perform(op, name, ...args) {
    const lock = this.lock(decode(name));
    switch (op) {
      case 'lock':
        await lock.lock(lease(args[0]));
        return '-';
      case 'trylock':
        return lock.tryLock(Number(args[0]), lease(args[1]));
      case 'unlock':
        await lock.unlock();
        return '-';
      case 'force':
        return lock.forceUnlock();
      case 'locked':
        return lock.isLocked();
      case 'field':
        return `${lock.id}:${lock.clientId}`;
      case 'hammer':
        return hammer(lock, decode(args[0]), Number(args[1]));
      default:
        throw new Error(`unknown operation ${op}`);
    }
  }
}

async function hammer(lock, file, ms) {
  const end = performance.now() + ms;
  let sections = 0;
  while (performance.now() < end) {
    await lock.lock();
    const before = Number(await fs.readFile(file, 'utf8'));
    await fs.writeFile(file, String(before + 1));
    sections++;
    await lock.unlock();
  }
  return sections;
}

async function answer(id, call) {
  const began = performance.now();
  let result;
  try {
    result = `ok ${await call()}`;
  } catch (e) {
    result = `err ${e.constructor.name} ${encodeURIComponent(e.message)}`;
  }
  const ended = performance.now();
  const micros = (ms) => Math.round(ms * 1000);
  process.stdout.write(`${id} ${micros(performance.timeOrigin + ended)} ${micros(ended - began)} ${result}\n`);
}

async function main() {
  await answer('ready', async () => {
    await redisson.redis.ping();
    return 'node-redisson';
  });
  const lines = readline.createInterface({ input: process.stdin });
  lines.on('line', (line) => {
    const [id, thread, ...rest] = line.split(' ');
    const of = Thread.named(thread);
    of.last = of.last.then(() => answer(id, () => of.perform(...rest)));
  });
  lines.on('close', () => process.exit(0)); // without releasing anything
}

main();
