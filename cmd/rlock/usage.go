package main

const usage = `rlock is a re-entrant lock in Redis, the same one as Redisson's RLock.

  rlock demo                           see it work, in about ten seconds
  rlock run [flags] NAME -- command…   run a command while holding the lock NAME
  rlock ls [PATTERN]                   locks that are held
  rlock show NAME                      who holds a lock, and who waits for it
  rlock top                            locks that somebody waits for, live
  rlock watch NAME                     a line for each change of a lock
  rlock ask NAME                       ask whoever holds a lock for it
  rlock deadlocks                      sections that wait for each other
  rlock unlock -force NAME             free a lock whoever holds it
  rlock token NAME                     its fencing counter, which can be raised
  rlock doctor                         what this Redis means for the guarantees
  rlock version                        print the version
  rlock help [command]                 print this, or more about a command
`

const usageDemo = `usage: rlock demo [-cheats N]

Several processes share a stock counter through one lock; one of them is killed
while it holds the lock. Shows who held it when, and checks that no two were
inside at once and that no update was lost. Takes about ten seconds.

It uses the Redis at REDIS_ADDR if that is set (under keys of its own, which it
removes), else a redis-server from PATH that it starts, else an embedded one.

  -cheats N   that many processes leave out the lock: see the checks fail

exit code  0 all is well   1 a check failed   2 usage   128+n ended by signal n
`

const usageRun = `usage: rlock run [flags] NAME -- command [argument…]

Takes the lock NAME, runs the command, releases the lock, and exits with the
command's exit code. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to it;
SIGHUP not if rlock was told to ignore it, as by nohup.

  -wait D      wait at most D for the lock, 0: try once (default: wait for ever)
  -skip        exit with 0, and say nothing, if the lock is taken; it waits only
               with -wait
  -E N         exit code if the lock was not acquired (default 75)
  -v           say who is waited for, and when the lock was acquired and
               released
  -fenced      count the hold: RLOCK_TOKEN is a number that grows
  -fair        first come, first served, over all processes that ask with -fair
  -shared      as a reader of a read/write lock: many can hold it at a time
  -exclusive   as its writer; with -fenced, one that is counted
  -lease D     hold the lock for D at most: it is not renewed, and when it ends
               the command is stopped (default: renewed while the command runs)
  -max-hold D  as -lease, but renewed until then: a crash is noticed early
  -min-hold D  keep the lock for D at least, however short the command was
  -watchdog D  how long the lock outlives a crash of this machine; renewed every
               third of it (default 30s)
  -asked SIG   send the command SIG (USR1, TERM or another) once, when somebody
               waits for the lock, or asks for it by "rlock ask"
  -label TEXT  what others read who ask who holds the lock (default: host name
               and pid of rlock; '' for none)
  -grace D     time between SIGTERM and SIGKILL for a command that has to be
               stopped because the lock was lost (default 10s)
` + usageTarget + `  -addr A      the same as -redis

The command finds the name of the lock in RLOCK_NAME and the owner, as it is
written in Redis, in RLOCK_OWNER. It gets a process group of its own, which
signals go to, and at a terminal the foreground. Ctrl-Z stops it and rlock. When
they go on and the lock is gone, the command ends first.

exit code  of the command, or
  75     not acquired in time (see -E)    125  rlock failed, say Redis is down
  2      usage                            126  the command can't be executed
  124    the lock was lost; the command   127  the command was not found
         was stopped                      128+n  it was ended by signal n
`

// usageTarget describes the flags of target.
const usageTarget = `  -redis URL   redis://user:password@host:port/0, rediss:// for TLS,
               unix:///path, or host:port; nodes of a cluster as
               host:port,host:port or with ?addr=host:port&addr=…; sentinels
               with ?master_set=NAME
               (default RLOCK_REDIS_URL, REDIS_URL, REDIS_ADDR, or
               127.0.0.1:6379; the command of a run does not get the first)
  -password-file F  has the password; otherwise that of the URL, of
               REDIS_PASSWORD or REDISCLI_AUTH
  -cacert F    use TLS, and trust the certificates in F
  -prefix P    what Options.Prefix of the program puts before the names
`
