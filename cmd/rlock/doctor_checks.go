package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// examination checks one server.
type examination struct {
	node
	locks     *rlock.Client
	cluster   bool
	sentinels bool
	user      string // the user whose rights to check; "": the current user
	key       string // the lock to check the rights for

	info    map[string]string
	version [2]int
	found   []finding
}

func (e *examination) say(status, check, found, means string) {
	e.found = append(e.found, finding{status, check, found, means, []string{e.addr}})
}

// examine makes all checks. It fails if the server does not answer.
func (e *examination) examine(ctx context.Context) ([]finding, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTime)
	defer cancel()
	if err := e.Do(ctx, e.B().Ping().Build()).NonRedisError(); err != nil {
		return nil, err
	}
	// If INFO is refused, all of it stays empty, and the checks say unknown.
	text, _ := e.Do(ctx, e.B().Info().Build()).ToString()
	e.info = make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			e.info[name] = value
		}
	}
	for _, check := range []func(context.Context){
		e.server, e.scripts, e.lock, e.eviction, e.replicas, e.persistence, e.fencing, e.sharded, e.clock, e.rights, e.readers,
	} {
		check(ctx)
	}
	return e.found, ctx.Err()
}

// config returns a server parameter, "" if unknown.
func (e *examination) config(ctx context.Context, name string) string {
	values, _ := e.Do(ctx, e.B().ConfigGet().Parameter(name).Build()).AsStrMap()
	return values[name]
}

const infoRefused = "INFO is refused"

// The scripts need HRANDFIELD.
const oldestMajor, oldestMinor = 6, 2

func (e *examination) server(ctx context.Context) {
	what, version := "Redis", e.info["redis_version"]
	if v := e.info["valkey_version"]; v != "" {
		what, version = "Valkey", v
	}
	if version == "" { // every user may send HELLO
		hello, _ := e.Do(ctx, e.B().Hello().Build()).AsMap()
		v := hello["version"]
		version, _ = v.ToString()
	}
	parts := strings.Split(version+".0.0", ".")
	e.version[0], _ = strconv.Atoi(parts[0])
	e.version[1], _ = strconv.Atoi(parts[1])
	found := strings.TrimSpace(what + " " + version + " " + e.info["redis_mode"])
	switch v := e.version; {
	case v[0] == 0:
		e.say("unknown", "server", "unknown version", "The scripts need Redis 6.2.")
	case v[0] < oldestMajor || v[0] == oldestMajor && v[1] < oldestMinor:
		e.say("bad", "server", found, "The scripts need commands of Redis 6.2: a Lock of a held lock fails.")
	default:
		e.say("ok", "server", found, "It has all commands that the scripts use.")
	}
	if !e.cluster && e.info["redis_mode"] == "cluster" {
		e.say("bad", "cluster", "the server is a cluster's node, but this address looks like a single server", "The node does not count the waiting "+
			"processes that listen elsewhere, so unlocks hand nothing over, and a dead one in line delays the others (Without a line). Connect to the cluster itself.")
	}
	if e.cluster {
		text, _ := e.Do(ctx, e.B().ClusterInfo().Build()).ToString()
		if state := strings.Contains(text, "cluster_state:ok"); text != "" && !state {
			e.say("bad", "cluster", "its state is not ok", "Locks in unserved slots fail until the cluster recovers.")
		}
	}
}

func (e *examination) scripts(ctx context.Context) {
	err := e.Do(ctx, e.B().Eval().Script("return 1").Numkeys(0).Build()).Error()
	if err == nil {
		// NOSCRIPT: the server is allowed to answer, and does not know the script.
		if err = e.Do(ctx, e.B().Evalsha().Sha1(strings.Repeat("0", 40)).Numkeys(0).Build()).Error(); err != nil &&
			strings.HasPrefix(err.Error(), "NOSCRIPT") {
			err = nil
		}
	}
	if err != nil {
		e.say("bad", "scripts", err.Error(), "All lock operations are scripts: nothing works without EVAL and EVALSHA.")
		return
	}
	e.say("ok", "scripts", "EVAL and EVALSHA work", "All lock operations are scripts.")
	e.busy(ctx)
}

// busy warns if the server soon answers with BUSY while a script runs.
func (e *examination) busy(ctx context.Context) {
	const enough = 4000
	name := "busy-reply-threshold" // since Redis 7
	value := e.config(ctx, name)
	if value == "" {
		name = "lua-time-limit"
		value = e.config(ctx, name)
	}
	if ms, err := strconv.Atoi(value); err == nil && ms > 0 && ms < enough {
		e.say("warn", "busy", name+" "+value, "If a script runs for that many milliseconds while a subscription ends, rueidis may panic (Busy servers). "+
			"4000 is enough; the default is 5000.")
	}
}

// refusals maps the first word of an error by which a server refuses all writes to its cure.
var refusals = map[string]string{
	"NOREPLICAS": "It needs more replicas than it has: connect them, or set min-replicas-to-write to 0.",
	"MISCONF":    "It could not save its data to disk: see its log. stop-writes-on-bgsave-error no makes it accept writes anyway.",
	"OOM":        "Its memory is full: raise maxmemory, or delete unneeded data.",
	"READONLY":   "It is a replica.",
	"NOAUTH":     "It requires a password.",
}

// lock takes a lock of its own, because some refusals show in no setting.
func (e *examination) lock(ctx context.Context) {
	name, err := e.nameHere(ctx, e.key+":rlock-doctor:"+rand.Text())
	if name != "" && err == nil {
		err = e.locks.Mutex(name).TryDo(ctx, 0, func(context.Context) error { return nil })
	}
	switch {
	case name == "": // no slot, no lock
	case err == nil:
		e.say("ok", "lock", "taken and released", "A test lock, removed again.")
	case isForbidden(err):
		e.say("unknown", "lock", "the current user may not take it: "+trimPrefix(err), "If your program uses this user, pass one of its lock names with -name, or see the rights below.")
	default:
		why := strings.TrimPrefix(trimPrefix(err), strconv.Quote(name)+": ")
		means := "Every Lock fails like this."
		for word, cure := range refusals {
			if strings.Contains(err.Error(), word+" ") {
				means = "Every Lock fails like this. " + cure
			}
		}
		e.say("bad", "lock", "it fails: "+why, means)
	}
}

// readers warns if a reader of the lock outlasts the lock's expiry. No script of this library leaves a lock so.
func (e *examination) readers(ctx context.Context) {
	fields, err := e.Do(ctx, e.B().Hgetall().Key(e.key).Build()).AsStrMap()
	if err != nil || fields["mode"] != "read" {
		return
	}
	begins := e.key + ":"
	if !strings.Contains(e.key, "{") {
		begins = "{" + e.key + "}:"
	}
	var commands []rueidis.Completed
	for field := range fields {
		if field != "mode" && len(commands) < 1000 {
			commands = append(commands, e.B().Pttl().Key(begins+field+":rwlock_timeout:1").Build())
		}
	}
	commands = append(commands, e.B().Pttl().Key(e.key).Build()) // last: a renewal in between raises both
	left := make([]int64, len(commands))
	for i, r := range e.DoMulti(ctx, commands...) {
		if left[i], err = r.AsInt64(); err != nil {
			return
		}
	}
	expires, last := left[len(left)-1], slices.Max(left)
	if expires < 0 || last < expires+1000 {
		return
	}
	seconds := func(ms int64) string { return (time.Duration(ms) * time.Millisecond).Round(time.Second).String() }
	e.say("warn", "readers", fmt.Sprintf("%s expires in %s, and a reader of it in %s", strconv.Quote(e.key), seconds(expires), seconds(last)),
		"A Redisson reader has set the expiry to its own watchdog time. If that is less than Options.WatchdogTimeout, readers of this library can "+
			"lose the lock before their ctx is cancelled (docs/redisson.md): give both sides the same watchdog time.")
}

// nameHere returns a name with a prefix, in a slot of this server; "" if none was found.
func (e *examination) nameHere(ctx context.Context, begins string) (string, error) {
	if !e.cluster || strings.Contains(begins, "{") { // braces fix the slot
		return begins, nil
	}
	const tries = 1000
	for i := range tries {
		name := begins + strconv.Itoa(i)
		err := e.Do(ctx, e.B().Exists().Key(name).Build()).Error()
		if said, ok := rueidis.IsRedisErr(err); !ok || !strings.HasPrefix(said.Error(), "MOVED") {
			return name, err
		}
	}
	return "", nil
}

func (e *examination) eviction(context.Context) {
	policy, most := e.info["maxmemory_policy"], e.info["maxmemory"]
	found := fmt.Sprintf("%s, maxmemory %s", policy, cmp.Or(e.info["maxmemory_human"], most))
	switch {
	case policy == "":
		e.say("unknown", "eviction", infoRefused, "With a policy other than noeviction, held locks may be evicted: then two can be inside (Eviction).")
	case policy == "noeviction":
		e.say("ok", "eviction", found, "Locks are never evicted. When the memory is full, Lock fails.")
	case most == "0":
		e.say("ok", "eviction", found, "No memory limit, so nothing is evicted. Set noeviction before you set a limit.")
	default:
		e.say("bad", "eviction", found, "Held locks may be evicted: then two can be inside (Eviction). "+
			"Use noeviction, or a separate server for locks.")
	}
}

func (e *examination) replicas(ctx context.Context) {
	role, count := e.info["role"], e.info["connected_slaves"]
	wait := "WAIT works"
	err := e.Do(ctx, e.B().Wait().Numreplicas(0).Timeout(1).Build()).Error()
	if err != nil {
		wait = "WAIT fails: " + err.Error()
	}
	switch {
	case role == "":
		e.say("unknown", "replicas", infoRefused, "If there are replicas, a failover may lose a lock (Failover).")
	case role != "master":
		e.say("bad", "replicas", "this server is a replica", "Locks need a master: use its address, a cluster, or sentinels with ?master_set=NAME. "+
			"If this address led to the master before a failover, old connections stay at the replica: have the balancer end old sessions, "+
			"set rueidis's ConnLifetime, or connect by rlock.Open, which dials anew.")
	case count == "0":
		e.say("ok", "replicas", "none", "No failover can lose a lock. While this server is down, Lock fails. Options.Replicas must be 0.")
	case err != nil:
		e.say("warn", "replicas", count+"; "+wait, "A failover may lose a lock, and Options.Replicas, which makes that less likely, does not work (Replicas). "+
			"Use FencedMutex or Quorum.")
	default:
		e.say("warn", "replicas", count+"; "+wait, "A failover may lose a lock: then two can be inside until the first one's next renewal (Failover). "+
			"Options.Replicas makes that less likely; FencedMutex protects the data; Quorum survives it.")
	}
}

func (e *examination) persistence(ctx context.Context) {
	const forgets = "such a lock is free while its holder goes on, until its next renewal (Failover)"
	sync := e.config(ctx, "appendfsync")
	save := e.config(ctx, "save")
	switch aof := e.info["aof_enabled"]; {
	case aof == "":
		e.say("unknown", "persistence", infoRefused, "After a restart that lost locks, "+forgets+".")
	case aof == "1" && e.info["aof_last_write_status"] == "err":
		e.say("bad", "persistence", "AOF, but its last write failed", "Redis refuses writes, so Locks fail.")
	case aof == "1" && sync == "always":
		e.say("ok", "persistence", "AOF, appendfsync always", "A restart keeps all locks.")
	case aof == "1":
		e.say("warn", "persistence", "AOF, appendfsync "+cmp.Or(sync, "unknown"), "A crash of the machine may lose the locks of the last second: "+
			forgets+". appendfsync always keeps them.")
	case save != "":
		e.say("warn", "persistence", "snapshots only", "A crash loses the locks since the last snapshot: "+forgets+".")
	default:
		e.say("warn", "persistence", "no AOF", "A crash, and usually a restart, loses all locks: "+forgets+".")
	}
}

// fencing checks whether tokens survive a restart.
func (e *examination) fencing(ctx context.Context) {
	switch aof := e.info["aof_enabled"]; {
	case aof == "":
		e.say("unknown", "fencing", infoRefused, "After a restart that lost the counters, stores refuse the tokens of fenced locks.")
	case aof == "1" && e.config(ctx, "appendfsync") == "always":
		e.say("ok", "fencing", "a restart keeps the counters", "Tokens continue to grow.")
	default:
		e.say("warn", "fencing", "a restart may reset the counters", "Concerns fenced locks only: their tokens start again, and stores refuse "+
			"all writes until the tokens are higher than before, which may take for ever. Raise each counter: rlock token NAME -at-least N.")
	}
}

func (e *examination) sharded(ctx context.Context) {
	if !e.cluster {
		e.say("ok", "pub/sub", "plain: not a cluster", "An unlock hands the lock to the next process, and notifies only that one.")
		return
	}
	if err := e.Do(ctx, e.B().Arbitrary("PUBSUB", "SHARDNUMSUB").Build()).Error(); err != nil {
		e.say("warn", "pub/sub", "a cluster without sharded channels: "+err.Error(), "Each unlock message goes to all nodes and wakes a waiter in every process, "+
			"without an order between them (Without a line).")
		return
	}
	e.say("ok", "pub/sub", "sharded", "An unlock hands the lock to the next process, and notifies only that one.")
}

func (e *examination) clock(ctx context.Context) {
	began := time.Now()
	reply, err := e.Do(ctx, e.B().Time().Build()).AsStrSlice()
	took := time.Since(began)
	if err != nil || len(reply) != 2 {
		e.say("unknown", "clock", "TIME is refused", "Fair and read/write locks need TIME.")
		return
	}
	seconds, _ := strconv.ParseInt(reply[0], 10, 64)
	micros, _ := strconv.ParseInt(reply[1], 10, 64)
	apart := time.Unix(seconds, micros*1000).Sub(began.Add(took / 2)).Abs()
	means := "Clocks need not agree, but must not be set while locks are held (Clocks)."
	if apart-took/2 > time.Second {
		e.say("warn", "clock", short(apart)+" apart from this machine's", means+" Redisson's fair and read/write locks need clocks that agree.")
		return
	}
	e.say("ok", "clock", "less than a second apart from this machine's", means)
}
