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
	others    *rlock.Client // with connections of its own, like another process
	deaf      deaf          // its log
	cluster   bool
	sentinels bool
	user      string // the user whose rights to check; "": the current user
	key       string // the lock to check the rights for

	name    string            // of the lock to take; "": the server has no slots
	info    map[string]string // nil: refused
	version [2]int
	takes   bool          // the lock can be taken
	woken   time.Duration // from an unlock until a waiting process had the lock; 0: unknown
	found   []finding
}

func (e *examination) say(status, check, found, means string) {
	e.found = append(e.found, finding{status, check, found, means, []string{e.addr}})
}

// examine makes all checks. It fails if the server does not answer.
func (e *examination) examine(ctx context.Context) ([]finding, error) {
	if err := e.answers(ctx); err != nil {
		return nil, err
	}
	for _, check := range []struct {
		within time.Duration
		makes  func(context.Context)
	}{
		{answerTime, e.look}, {answerTime, e.server}, {answerTime, e.scripts}, {4 * answerTime, e.lock}, {answerTime, e.eviction}, {answerTime, e.replicas},
		{answerTime, e.persistence}, {answerTime, e.fencing}, {2 * answerTime, e.pubsub}, {answerTime, e.clock}, {answerTime, e.rights}, {answerTime, e.readers},
	} {
		ctx, cancel := context.WithTimeout(ctx, check.within)
		check.makes(ctx)
		err := ctx.Err()
		cancel()
		if err != nil {
			return nil, err
		}
	}
	return e.found, nil
}

func (e *examination) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return e.Do(ctx, e.B().Ping().Build()).NonRedisError()
}

// look finds a name for the test lock, and reads INFO.
func (e *examination) look(ctx context.Context) {
	e.name = e.nameHere(ctx, e.key+":rlock-doctor:"+rand.Text())
	text, err := e.Do(ctx, e.B().Info().Build()).ToString()
	if err != nil {
		return
	}
	e.info = make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			e.info[name] = value
		}
	}
}

// config returns a server parameter, "" if unknown.
func (e *examination) config(ctx context.Context, name string) string {
	values, _ := e.Do(ctx, e.B().ConfigGet().Parameter(name).Build()).AsStrMap()
	return values[name]
}

const infoRefused = "INFO is refused, or does not show it"

// The scripts need HRANDFIELD.
const oldestMajor, oldestMinor = 6, 2

func (e *examination) server(ctx context.Context) {
	what, version := "Redis", e.info["redis_version"]
	if v := e.info["valkey_version"]; v != "" {
		what, version = "Valkey", v
	}
	if e.info == nil { // every user may send HELLO
		hello, _ := e.Do(ctx, e.B().Hello().Build()).AsMap()
		v := hello["version"]
		version, _ = v.ToString()
	}
	parts := strings.Split(version+".0.0", ".")
	e.version[0], _ = strconv.Atoi(parts[0])
	e.version[1], _ = strconv.Atoi(parts[1])
	found := strings.TrimSpace(what + " " + version + " " + e.info["redis_mode"])
	switch v := e.version; {
	case e.info != nil && version == "":
		e.say("warn", "server", "INFO shows no version", "This is not Redis or Valkey, but an imitation for tests, such as miniredis, or a proxy. "+
			"Nothing more is known of it than the findings below.")
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
		text, err := e.Do(ctx, e.B().ClusterInfo().Build()).ToString()
		if err == nil && !strings.Contains(text, "cluster_state:ok") {
			e.say("bad", "cluster", "its state is not ok", "Locks in unserved slots fail until the cluster recovers.")
		}
	}
}

func (e *examination) scripts(ctx context.Context) {
	key := e.key
	if e.cluster {
		key = e.name
	}
	err := e.evaluate(ctx, key)
	if err != nil && (key == "" || isForbidden(err)) { // of that key, perhaps
		err = e.evaluate(ctx)
	}
	if err != nil {
		e.say("bad", "scripts", err.Error(), "All lock operations are scripts: nothing works without EVAL and EVALSHA.")
		return
	}
	e.say("ok", "scripts", "EVAL and EVALSHA work", "All lock operations are scripts.")
	e.busy(ctx)
}

// evaluate runs a script with keys: some proxies accept no others.
func (e *examination) evaluate(ctx context.Context, keys ...string) error {
	many := int64(len(keys))
	if err := e.Do(ctx, e.B().Eval().Script("return 1").Numkeys(many).Key(keys...).Build()).Error(); err != nil {
		return err
	}
	err := e.Do(ctx, e.B().Evalsha().Sha1(strings.Repeat("0", 40)).Numkeys(many).Key(keys...).Build()).Error()
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") { // the server may answer, and does not know the script
		return nil
	}
	return err
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
func (e *examination) nameHere(ctx context.Context, begins string) string {
	if !e.cluster || strings.Contains(begins, "{") { // braces fix the slot
		return begins
	}
	const tries = 1000
	for i := range tries {
		name := begins + strconv.Itoa(i)
		err := e.Do(ctx, e.B().Exists().Key(name).Build()).Error()
		if said, ok := rueidis.IsRedisErr(err); !ok || !strings.HasPrefix(said.Error(), "MOVED") {
			return name
		}
	}
	return ""
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
	case role == "" || count == "":
		e.say("unknown", "replicas", infoRefused, "If there are replicas, a failover may lose a lock (Failover).")
	case role == "active-replica" || count != "0" && e.config(ctx, "active-replica") == "yes": // KeyDB
		e.say("bad", "replicas", "two masters that replicate each other (active-replica)", "Each grants locks without asking the other, so two can be inside. "+
			"Set active-replica no, which leaves one master.")
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
	case aof == "1" && sync == "no":
		e.say("warn", "persistence", "AOF, appendfsync no", "A crash of the machine may lose the locks of about the last 30 seconds, until the system writes them: "+
			forgets+". appendfsync always keeps them.")
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
