#!/usr/bin/env bash
# proper-lockfile: with two lock files for one folder, the release of the first ends the renewal of the second, which others then take
#
# Run:      proper-lockfile 4.1.2 (npm): a process locks its folder with lockfilePath "build.lock" and "publish.lock", as its documentation
#           does for a folder, and releases the first. Another process asks for the second until it gets it. Then the first releases that.
# Guess:    two locks: the second is refused until its holder releases it, since its file is touched twice in each "stale".
# Seen:     inside a process, what is renewed and released is found by the folder alone: the first release is the second's, but for the file
#           that it removes. Nobody touches "publish.lock" again, and the other process has it after "stale". onCompromised says that
#           "build.lock", which was released, is lost, and no word of the other.
# Matters:  the one who is told is the one who no longer cares, and without a handler of its own it ends the process. A table of held locks
#           needs the lock's name as its key, not that of what it protects.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

node_packages proper-lockfile@4.1.2
mkdir shop
cat >other.js <<'END'
const { lock } = require('proper-lockfile');

const name = process.argv[2];
(async () => {
  try {
    await lock('shop', { lockfilePath: `shop/${name}` });
    console.log('got it');
  } catch (error) {
    console.log(error.code);
  }
})();
END
cat >main.js <<'END'
const { execFileSync } = require('child_process');
const path = require('path');
const { setTimeout: sleep } = require('timers/promises');
const { lock } = require('proper-lockfile');

const outcome = (promise) => promise.then(() => 'done', (error) => error.code);
const anotherProcess = (name) => execFileSync('node', ['other.js', name], { encoding: 'utf8' }).trim();

(async () => {
  const told = [];
  const onCompromised = (error) => told.push(error.code, error.path);
  const hold = (name) => lock('shop', { lockfilePath: `shop/${name}`, onCompromised });
  const build = await hold('build.lock');
  const publish = await hold('publish.lock');
  console.log('another process, "publish.lock":', anotherProcess('publish.lock'));
  console.log('release of "build.lock":', await outcome(build()));
  await sleep(12_000);
  console.log('another process, 12 s later, "publish.lock":', anotherProcess('publish.lock'));
  console.log('told to the holder:', ...told.map((each) => path.basename(each)));
  console.log('release of "publish.lock":', await outcome(publish()));
})();
END
expect node main.js <<'END'
another process, "publish.lock": ELOCKED
release of "build.lock": done
another process, 12 s later, "publish.lock": got it
told to the holder: ECOMPROMISED build.lock
release of "publish.lock": ERELEASED
END
