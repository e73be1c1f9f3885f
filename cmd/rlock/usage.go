package main

const usage = `rlock is a re-entrant lock in Redis, compatible with Redisson's RLock.

  rlock demo                           see it work, in about ten seconds
  rlock run [flags] NAME -- command…   run a command while holding the lock NAME
  rlock ls [PATTERN]                   list held locks
  rlock show NAME                      show a lock's holders and waiters
  rlock top                            show contended locks, live
  rlock watch NAME                     print each change of a lock
  rlock record [PATTERN]               record what happens to all locks
  rlock report FILE                    make a page of a recording
  rlock ask NAME                       ask the holder to give up a lock
  rlock deadlocks                      show sections that wait for each other
  rlock unlock -force NAME             free a lock, whoever holds it
  rlock token NAME                     print or raise a fencing counter
  rlock doctor                         check this Redis against the guarantees
  rlock completion SHELL               let bash, zsh or fish complete all this
  rlock version                        print the version
  rlock help [command]                 print this, or a command's usage
`

const usageDemo = `usage: rlock demo [-cheats N]

Several processes update a stock counter under one lock; one of them is killed
while it holds the lock. Shows who held it when, and checks that no two were
inside at once and that no update was lost. Takes about ten seconds.

Uses the Redis at REDIS_ADDR if set (with keys of its own, removed at the end),
else starts a redis-server from PATH, else an embedded one.

  -cheats N   let N processes skip the lock, and see the checks fail

exit code  0 all is well   1 a check failed   2 usage   128+n ended by signal n
`

const usageRun = `usage: rlock run [flags] NAME -- command [argument…]

Takes the lock NAME, runs the command, releases the lock, and exits with the
command's exit code. Passes on SIGINT, SIGTERM, SIGHUP and SIGQUIT, but not
SIGHUP if rlock ignores it, as under nohup.

  -wait D      wait at most D for the lock; 0: try once (default: wait for ever)
  -skip        exit silently with 0 if the lock is taken; waits only with -wait
  -E N         exit code if the lock was not acquired (default 75)
  -v           say who holds the lock during the wait, and when it was acquired
               and released
  -fenced      set RLOCK_TOKEN to a number that grows with every hold
  -fair        first come, first served, among all processes that use -fair
  -shared      the read side of a read/write lock: many can hold it at a time
  -exclusive   the write side; with -fenced, of a fenced read/write lock
  -lease D     hold the lock for at most D without renewal, then stop the
               command (default: renew while the command runs)
  -max-hold D  like -lease, but renewed until then: a crash is noticed early
  -min-hold D  keep the lock for at least D, however short the command
  -watchdog D  how long the lock outlives a crash of this machine; renewed every
               third of it (default 30s)
  -asked SIG   send the command SIG (USR1, TERM or another) once, when somebody
               waits for the lock or asks for it with "rlock ask"
  -label TEXT  shown to others as the holder (default: host name and pid of
               rlock; '' for none)
  -wait-group  also wait for what the command leaves behind in the background;
               otherwise that goes on without the lock
  -kill-after D  if the lock is lost, time between SIGTERM and SIGKILL for the
               command (default 10s)
  -grace D     keep others out for D after a loss, so that the command can end
               first; also after a crash of this machine
` + usageTarget + `  -addr A      the same as -redis

The command finds the lock's name in RLOCK_NAME, and its owner in Redis in
RLOCK_OWNER. It has its own process group, which gets the signals, and runs in
the foreground of a terminal. Ctrl-Z stops it and rlock; if the lock is gone
when they continue, the command is terminated.

exit code  of the command, or
  75     not acquired in time (see -E)    125  rlock failed, e.g. Redis is down
  2      usage                            126  the command can't be executed
  124    the lock was lost; the command   127  the command was not found
         was stopped                      128+n  it was ended by signal n
`

// usageTarget describes the flags of target.
const usageTarget = `  -redis URL   redis://user:password@host:port/0, rediss:// for TLS,
               unix:path or the path of a socket, or host:port; nodes of a
               cluster as host:port,host:port or with ?addr=host:port&addr=…;
               sentinels with ?master_set=NAME (default: RLOCK_REDIS_URL,
               REDIS_URL, REDIS_ADDR, or 127.0.0.1:6379; the command of
               "rlock run" does not inherit RLOCK_REDIS_URL)
  -password-file F  file with the password (default: the URL's password,
               REDIS_PASSWORD or REDISCLI_AUTH)
  -cacert F    use TLS, and trust the certificates in F
  -cert F      use TLS, and show the certificate in F
  -key F       its private key (default: in the file of -cert)
  -sentinel-user U            the sentinels' own user (default: default)
  -sentinel-password-file F   file with the sentinels' own password
  -prefix P    the program's Options.Prefix
`
