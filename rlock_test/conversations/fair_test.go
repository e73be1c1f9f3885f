package conversations

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/go-rlock/rlock/lua"
)

// The lock in conversations about fair locks.
const (
	fairName    = "job"
	fairChannel = "redisson_lock__channel:{job}"
	fairList    = "redisson_lock_queue:{job}"
	fairTimes   = "redisson_lock_timeout:{job}"
)

func TestFairConversations(t *testing.T) {
	t.Parallel()
	converse(t, "testdata/fair", fairChannel, fairDirectives)
}

// Directives for fair locks. Numbers of this library's owners begin with 0.
//
//	acquire OWNER [lease=30s] [look] [deaf]     joins the queue, except with look
//	release OWNER [no-grants] [deaf]            deaf: ignores the number of receivers
//	refresh OWNER … [deaf]                      places last for 5 s
//	force
//	java-… OWNER                                as Redisson's scripts, see javaHead
var fairDirectives = map[string]directive{
	"acquire": func(c *conversation, d *datadriven.TestData) string {
		r, err := lua.Acquire(c.t.Context(), c.rdb, lua.AcquireArgs{
			Name: fairName, Owner: ownerArg(d), Lease: durationArg(d, "lease", 30*time.Second), Count: 1,
			Fair: fairArg(d), Join: !d.HasArg("look"), Publish: lua.Publish{Name: fairChannel},
		})
		text := acquired(r, err)
		if r.Behind {
			text += " behind Redisson's"
		}
		return text
	},
	"release": func(c *conversation, d *datadriven.TestData) string {
		r, err := lua.Release(c.t.Context(), c.rdb, lua.ReleaseArgs{
			Name: fairName, Owner: ownerArg(d), Fair: fairArg(d), Publish: lua.Publish{Name: fairChannel},
		})
		if err != nil {
			return err.Error()
		}
		return releasedText(r)
	},
	"refresh": func(c *conversation, d *datadriven.TestData) string {
		var places []lua.Place
		for _, arg := range d.CmdArgs {
			if arg.Key != "deaf" {
				places = append(places, lua.Place{
					Name: fairName, Owner: longNames(arg.Key), List: fairList, Times: fairTimes, Channel: fairChannel,
				})
			}
		}
		verdicts, err := lua.Refresh(c.t.Context(), c.rdb, fairArg(d), lua.Publish{}, places)
		return renewed(verdicts, err)
	},
	"force": func(c *conversation, d *datadriven.TestData) string {
		held, err := lua.ForceFair(c.t.Context(), c.rdb, fairName, fairArg(d), lua.Publish{Name: fairChannel})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("was held: %t", held)
	},
	"java-lock":    javaStep(javaLock),
	"java-unlock":  javaStep(javaUnlock),
	"java-give-up": javaStep(javaGiveUp),
}

func fairArg(d *datadriven.TestData) lua.Fair {
	f := lua.Fair{List: fairList, Times: fairTimes, Place: 5 * time.Second, GrantLease: 2 * time.Second, Counts: !d.HasArg("deaf")}
	if d.HasArg("no-grants") {
		f.GrantLease = 0
	}
	return f
}

// Redisson 4.7.0's scripts for a fair lock, rewritten. KEYS are the lock, the list and the times; ARGV are the
// owner, its longest wait in ms, and the unlock channel. Unlike Redisson's, they read the time from the server.
// Interop tests use the originals.
const javaHead = `
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local owner, wait = ARGV[1], tonumber(ARGV[2])
local function head()
  while true do
    local first = redis.call('lindex', KEYS[2], 0)
    local time = first and redis.call('zscore', KEYS[3], first)
    if not time or tonumber(time) > now then
      return first
    end
    redis.call('zrem', KEYS[3], first)
    redis.call('lpop', KEYS[2])
  end -- of the loop
end
local function tell(first)
  if first then
    redis.call('publish', ARGV[3] .. ':' .. first, '0')
  end -- if there is one
end
`

const javaLock = javaHead + `
local first = head()
if redis.call('exists', KEYS[1]) == 0 and (not first or first == owner) then
  redis.call('lpop', KEYS[2])
  redis.call('zrem', KEYS[3], owner)
  for _, left in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
    redis.call('zincrby', KEYS[3], -wait, left)
  end
  redis.call('hset', KEYS[1], owner, 1)
  redis.call('pexpire', KEYS[1], 30000)
  return 'acquired'
end
local ttl = math.max(redis.call('pttl', KEYS[1]), 0)
if not redis.call('zscore', KEYS[3], owner) then
  local last = redis.call('lindex', KEYS[2], -1)
  local base = last and redis.call('zscore', KEYS[3], last)
  ttl = base and last ~= owner and base - now or ttl
  if redis.call('zadd', KEYS[3], ttl + wait + now, owner) == 1 then
    redis.call('rpush', KEYS[2], owner)
  end -- if it had no time
end
return 'held for ' .. math.floor(ttl / 1000 + 0.5) .. 's'
`

const javaUnlock = javaHead + `
local first = head()
if redis.call('del', KEYS[1]) == 0 then
  tell(first)
  return 'was free'
end
tell(first)
return 'released'
`

const javaGiveUp = javaHead + `
local behind = false
for _, entry in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
  if behind then
    redis.call('zincrby', KEYS[3], -wait, entry)
  end
  behind = behind or entry == owner
end
redis.call('zrem', KEYS[3], owner)
redis.call('lrem', KEYS[2], 0, owner)
return 'gave up'
`

// javaStep runs one of these scripts for an owner; wait is its longest wait, Redisson's by default.
func javaStep(script string) directive {
	return func(c *conversation, d *datadriven.TestData) string {
		wait := strconv.FormatInt(durationArg(d, "wait", 300*time.Second).Milliseconds(), 10)
		m := c.must("EVAL", script, "3", fairName, fairList, fairTimes, ownerArg(d), wait, fairChannel)
		return reply(m)
	}
}
