#!/usr/bin/env bash
# croner: a trigger() of a protected job while it runs is not held back, and its end lets the schedule start the job beside the first run
#
# Run:      croner 11.0.1 (npm): a job of every second with protect: true, whose first run takes six seconds, and every other one a tenth.
#           With nothing else; and with one trigger() after 2.3 seconds.
# Guess:    nothing overlaps: trigger() is held back as the schedule's runs are, or it is one overlap that was asked for, and no more.
# Seen:     trigger() runs beside the first run. "Busy" is one flag for all runs, and whichever run ends first takes it off: from then on
#           isBusy() says false, and the schedule starts the job each second beside the first run, until that has ended.
# Matters:  one push of a "run now" button switches overrun protection off for the rest of a long run. A lock is released by the one that
#           took it; a flag that everybody clears is none.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

node_packages croner@11.0.1
cat >main.mjs <<'END'
import { setTimeout as sleep } from 'timers/promises';
import { Cron } from 'croner';

for (const triggered of [false, true]) {
  let runs = 0, running = 0, beside = 0, first;
  const job = new Cron('* * * * * *', { protect: true }, async () => {
    const long = ++runs === 1;
    if (++running > 1) beside++;
    if (long) first = sleep(6000);
    await (long ? first : sleep(100));
    running--;
  });
  while (!first) await sleep(10);
  await sleep(2300);
  console.log(`trigger(): ${triggered}, busy before: ${job.isBusy()}`);
  if (triggered) await job.trigger();
  console.log(`  busy after: ${job.isBusy()}`);
  await first;
  job.stop();
  console.log(`  runs beside the first one: ${beside > 1 ? 'more than one' : beside}`);
  await sleep(200);
}
END
expect node main.mjs <<'END'
trigger(): false, busy before: true
  busy after: true
  runs beside the first one: 0
trigger(): true, busy before: true
  busy after: false
  runs beside the first one: more than one
END
