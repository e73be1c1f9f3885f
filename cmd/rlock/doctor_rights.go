package main

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/pubsub"
)

// right is a command with realistic arguments, the key or channel among them.
type right []string

// rightsFor are the rights that one use needs.
type rightsFor struct {
	use    string
	status string // if they are missing
	means  string
	rights []right
}

// rights checks each command that the scripts and the Client send.
func (e *examination) rights(ctx context.Context) {
	user := e.user
	if user == "" {
		var err error
		if user, err = e.Do(ctx, e.B().AclWhoami().Build()).ToString(); err != nil {
			e.say("unknown", "rights", "ACL WHOAMI is refused: "+err.Error(), "docs/internals/protocol.md lists the required rights. Check with -acl-user as an administrator.")
			return
		}
	}
	if why := e.shutOut(ctx, user); why != "" {
		e.say("bad", "rights", "the user "+user+" "+why, "Nobody can connect as this user: ACL SETUSER "+user+" on, with a password.")
		return
	}
	groups := neededRights(e.key, e.cluster, e.sentinels)
	says, err := e.dryRun(ctx, user, groups)
	switch {
	case err == nil:
	case strings.HasPrefix(err.Error(), "User ") && strings.HasSuffix(err.Error(), "not found"):
		e.say("bad", "rights", "there is no user "+user, "ACL USERS lists the users: pass one of them with -acl-user.")
		return
	default:
		e.say("unknown", "rights", e.noDryRun(user, err), "docs/internals/protocol.md lists the required rights.")
		return
	}
	lacking := 0
	for _, group := range groups {
		var missing []string
		for _, r := range group.rights {
			if says[0] != "OK" {
				missing = append(missing, r.missing(says[0]))
			}
			says = says[1:]
		}
		slices.Sort(missing)
		if missing = slices.Compact(missing); len(missing) > 0 {
			if group.status != "ok" {
				lacking++
			}
			e.say(group.status, "rights", "for "+group.use+" the user "+user+" lacks: "+strings.Join(missing, " "), group.means)
		}
	}
	if lacking == 0 {
		e.say("ok", "rights", "the user "+user+" has all rights for "+printable(e.key), "All kinds of locks, and hand-overs between processes, work.")
	}
}

// shutOut says why nobody can connect as a user, whatever its rights; "" if somebody can, or it is unknown.
func (e *examination) shutOut(ctx context.Context, user string) string {
	is, err := e.Do(ctx, e.B().AclGetuser().Username(user).Build()).AsMap()
	if err != nil {
		return ""
	}
	listed, passwords := is["flags"], is["passwords"]
	flags, err1 := listed.AsStrSlice()
	known, err2 := passwords.AsStrSlice()
	switch {
	case err1 != nil || err2 != nil:
	case slices.Contains(flags, "off"):
		return "is off"
	case !slices.Contains(flags, "nopass") && len(known) == 0:
		return "has no password"
	}
	return ""
}

// dryRun returns what the server says about each right: "OK", or why the user lacks it.
func (e *examination) dryRun(ctx context.Context, user string, groups []rightsFor) (says []string, err error) {
	var asks rueidis.Commands
	for _, group := range groups {
		for _, r := range group.rights {
			asks = append(asks, e.B().Arbitrary("ACL", "DRYRUN", user).Args(r...).Build())
		}
	}
	// The first alone: each refusal is an entry in the server's ACL LOG.
	for _, batch := range []rueidis.Commands{asks[:1], asks[1:]} {
		for _, reply := range e.DoMulti(ctx, batch...) {
			text, err := reply.ToString()
			switch {
			case err == nil:
			case strings.HasPrefix(err.Error(), "Command "): // … 'X' not found: this server does not have it
				text = "no such command"
			default:
				return nil, err
			}
			says = append(says, text)
		}
	}
	return says, nil
}

// noDryRun says why the rights are unknown.
func (e *examination) noDryRun(user string, err error) string {
	redisErr, said := rueidis.IsRedisErr(err)
	switch {
	case e.version[0] > 0 && e.version[0] < 7:
		return "unknown before Redis 7, which has ACL DRYRUN"
	case said && strings.HasPrefix(redisErr.Error(), "NOPERM"):
		return "the user " + user + " may not run ACL DRYRUN: check with -acl-user as an administrator"
	}
	return "ACL DRYRUN: " + err.Error()
}

// object is the key or channel in a reply of ACL DRYRUN.
var object = regexp.MustCompile(`'(.*)' (?:key|channel)$`)

// missing returns the refused key or channel, otherwise the command.
func (r right) missing(says string) string {
	command := r[0]
	if command == "PUBSUB" || command == "CLUSTER" || command == "CLIENT" {
		command += " " + r[1]
	}
	if what := object.FindStringSubmatch(says); what != nil {
		return what[1]
	}
	return command
}

// neededRights are the rights for a lock, as in docs/internals/protocol.md, Rights.
func neededRights(key string, cluster, sentinels bool) []rightsFor {
	const id = "00000000-0000-0000-0000-000000000000"
	owner, sha := id+":1", strings.Repeat("0", 40)
	lock, rw := prefixed(lockChannel, key), prefixed(rwChannel, key)
	own := func(prefix string) string { return own(prefix, key) }
	queue, marks, gate := own("rlock_queue"), own("rlock_writers"), own("rlock_upgrade")
	fair, times := prefixed("redisson_lock_queue", key), prefixed("redisson_lock_timeout", key)
	token := prefixed("redisson_lock_token", key)
	sc, wants, semQueue := prefixed(semaphoreChannel, key), semaphoreWantsOf(key), own("rlock_sem_queue")
	latch, record := latchChannelOf(key), latchRecordOf(key)
	permits, slots := permitsOf(key), slotsOf(key)
	hold := hashTag(key) + ":" + owner + ":rwlock_timeout:1"
	ear, label := pubsub.EarChannel(id), kinds.LabelKey(id)
	all := []rightsFor{
		{"all locks", "bad", "Locks do not work.", []right{
			{"EVALSHA", sha, "1", key}, {"EVAL", "return 1", "1", key}, {"DEL", key}, {"HDEL", key, owner}, {"HEXISTS", key, owner},
			{"HGET", key, owner}, {"HINCRBY", key, owner, "1"}, {"HRANDFIELD", key, "2"}, {"HSET", key, owner, "1"},
			{"PEXPIRE", key, "1"}, {"PTTL", key}, {"PUBLISH", lock, "0"}, {"SUBSCRIBE", lock}, {"UNSUBSCRIBE", lock}, {"PING"},
		}},
		{"hand-over between processes", "warn", "Locks work, but an unlock may wake a waiter in every process, in no order (docs/internals/protocol.md, Rights).", []right{
			{"ZADD", queue, "0", owner}, {"ZCARD", queue}, {"ZPOPMIN", queue}, {"ZRANGE", queue, "0", "-1"}, {"ZRANK", queue, owner}, {"ZREM", queue, owner},
			{"ZSCORE", queue, owner}, {"DEL", queue}, {"PEXPIRE", queue, "1"}, {"PUBSUB", "NUMSUB", lock},
			{"SUBSCRIBE", lock + ":" + id}, {"PUBLISH", lock + ":" + id, "0"}, {"SUBSCRIBE", lock + inLine},
		}},
		{"fenced locks", "warn", "FencedMutex and FencedRWMutex fail.", []right{{"GET", token}, {"INCR", token}}},
		{"tokens of a run", "warn", "A FencedMutex costs a command per section.", []right{{"INCRBY", token, "1"}}},
		{"fair locks", "warn", "FairMutex fails.", []right{
			{"EXISTS", key}, {"LINDEX", fair, "0"}, {"LLEN", fair}, {"LPOP", fair}, {"LPOS", fair, owner}, {"LRANGE", fair, "0", "-1"},
			{"LREM", fair, "1", owner}, {"RPUSH", fair, owner}, {"TIME"}, {"ZADD", times, "0", owner}, {"ZCARD", times},
			{"ZREM", times, owner}, {"ZSCORE", times, owner}, {"ZRANGE", times, "0", "-1"}, {"PUBLISH", lock + ":" + owner, "0"}, {"SUBSCRIBE", lock + ":" + owner},
		}},
		{"read/write locks", "warn", "RWMutex fails, or later readers do not wait for writers (docs/internals/protocol.md, Read/write locks).", []right{
			{"HGETALL", key}, {"HLEN", key}, {"SET", hold, "1"}, {"PTTL", hold}, {"PEXPIRE", hold, "1"}, {"DEL", hold}, {"EXISTS", hold},
			{"TIME"}, {"ZADD", marks, "0", owner}, {"ZRANGE", marks, "0", "-1"}, {"ZREM", marks, owner}, {"HSET", gate, owner, "1"},
			{"PUBLISH", rw, "1"}, {"SUBSCRIBE", rw}, {"SUBSCRIBE", rw + ":" + id}, {"PUBSUB", "NUMSUB", rw},
		}},
		{"semaphores", "warn", "Semaphore fails.", []right{
			{"GET", key}, {"MGET", key, wants + ":" + id}, {"SET", key, "1"}, {"SET", wants + ":" + id, "1"}, {"INCRBY", key, "1"}, {"HMGET", wants, id},
			{"HSET", wants, id, "1"}, {"HDEL", wants, id}, {"PEXPIRE", wants, "1"}, {"TIME"}, {"ZADD", semQueue, "0", id}, {"ZRANGE", semQueue, "0", "-1"},
			{"ZREM", semQueue, id}, {"PEXPIRE", semQueue, "1"}, {"ZCARD", semQueue}, {"ZMSCORE", semQueue, id}, {"ZCOUNT", semQueue + ":ends", "0", "1"},
			{"PUBLISH", sc, "1"}, {"SUBSCRIBE", sc}, {"SUBSCRIBE", sc + ":" + id}, {"PUBSUB", "NUMSUB", sc},
		}},
		{"permits that expire", "warn", "PermitSemaphore fails.", []right{
			{"ZADD", permits, "0", id}, {"ZCARD", permits}, {"ZCOUNT", permits, "0", "1"}, {"ZMSCORE", permits, id}, {"ZRANGE", permits, "0", "0"},
			{"ZRANGEBYSCORE", permits, "0", "1"}, {"ZREM", permits, id}, {"ZSCORE", permits, id}, {"PEXPIRE", permits, "1"}, {"ZADD", slots, "0", id},
			{"ZINTERSTORE", slots, "2", slots, permits}, {"PEXPIRE", slots, "1"},
		}},
		{"latches", "warn", "CountDownLatch fails.", []right{
			{"GET", key}, {"SET", key, "1"}, {"DECRBY", key, "1"}, {"HGET", record, id}, {"HSET", record, id, "1 1"}, {"PEXPIRE", record, "1"},
			{"PUBLISH", latch, "0"}, {"SUBSCRIBE", latch},
		}},
		{"IsLocked and Info", "warn", "Both fail.", []right{
			{"EXISTS", key}, {"HGETALL", key}, {"GET", token}, {"LRANGE", fair, "0", "-1"}, {"ZRANGE", queue, "0", "-1"}, {"PUBSUB", "NUMSUB", lock},
		}},
		{"names of connections", "warn", "rlock show cannot tell the host of a holder.", []right{{"CLIENT", "GETNAME"}, {"CLIENT", "SETNAME", "rlock:" + id}}},
		{"Options.Replicas", "warn", "A Client with Replicas takes no locks.", []right{{"WAIT", "1", "0"}}},
		{"WithAsked, WithLinger and Options.Deadlock", "ok", "Only users of these need it: &rlock_client:*.", []right{{"SUBSCRIBE", ear}, {"PUBLISH", ear, "0"}}},
		{"Options.Label", "ok", "Only users of labels need it: ~rlock_client:*.", []right{{"GET", label}, {"SET", label, "1"}, {"DEL", label}}},
	}
	if sentinels {
		all = append(all, rightsFor{"sentinels", "bad", "No Client connects.", []right{{"ROLE"}}})
	}
	if cluster {
		all = append(all, rightsFor{"clusters", "warn", "Waiters may miss unlocks.", []right{
			{"ASKING"}, {"CLUSTER", "INFO"}, {"CLUSTER", "SLOTS"}, {"SPUBLISH", lock, "0"}, {"SSUBSCRIBE", lock}, {"SUNSUBSCRIBE", lock},
			{"PUBSUB", "SHARDNUMSUB", lock},
		}})
	}
	return all
}
