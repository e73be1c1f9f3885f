package conversations

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/go-rlock/rlock/lua"
)

// The lock in conversations about plain and fenced locks is "job". Its queue and counter have the names of
// docs/internals/protocol.md.
const (
	plainName    = "job"
	plainChannel = "redisson_lock__channel:{job}"
	plainQueue   = "rlock_queue:{job}"
	plainFence   = "redisson_lock_token:{job}"
)

func TestConversations(t *testing.T) {
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		converse(t, "testdata/plain", plainChannel, plainDirectives)
	})
}

// Directives for plain locks, and with fence for fenced locks:
//
//	acquire OWNER [lease=30s] [count=1] [queue] [fence] [short]
//	release OWNER [count=0] [lease=30s] [next=OWNER] [stay] [short] [waited] [no-queue] [fence]
//	renew OWNER … [lease=30s]
//	force
var plainDirectives = map[string]directive{
	"acquire": func(c *conversation, d *datadriven.TestData) string {
		a := lua.AcquireArgs{
			Name: plainName, Owner: ownerArg(d), Lease: durationArg(d, "lease", 30*time.Second), Count: numberArg(d, "count", 1),
			GrantLease: 2 * time.Second, Publish: lua.Publish{Name: plainChannel}, Short: d.HasArg("short"),
		}
		if d.HasArg("queue") {
			a.Queue = plainQueue
		}
		if d.HasArg("fence") {
			a.Fence = plainFence
		}
		return acquired(lua.Acquire(c.t.Context(), c.rdb, a))
	},
	"release": func(c *conversation, d *datadriven.TestData) string {
		a := lua.ReleaseArgs{
			Name: plainName, Owner: ownerArg(d), Lease: durationArg(d, "lease", 30*time.Second), Count: numberArg(d, "count", 0),
			Publish: lua.Publish{Name: plainChannel}, Next: textArg(d, "next", ""), Stay: d.HasArg("stay"), Waited: d.HasArg("waited"),
		}
		if d.HasArg("fence") {
			a.Fence = plainFence
		}
		if !d.HasArg("no-queue") {
			a.Queue = lua.Queue{Key: plainQueue, GrantLease: 2 * time.Second, Short: d.HasArg("short")}
		}
		r, err := lua.Release(c.t.Context(), c.rdb, a)
		if err != nil {
			return err.Error()
		}
		return releasedText(r)
	},
	"renew": func(c *conversation, d *datadriven.TestData) string {
		var holds []lua.Hold
		for _, arg := range d.CmdArgs {
			if len(arg.Vals) == 0 {
				holds = append(holds, lua.Hold{Name: plainName, Owner: longNames(arg.Key)})
			}
		}
		verdicts, err := lua.Renew(c.t.Context(), c.rdb, durationArg(d, "lease", 30*time.Second), holds)
		return renewed(verdicts, err)
	},
	"force": func(c *conversation, _ *datadriven.TestData) string {
		held, err := lua.Force(c.t.Context(), c.rdb, plainName, lua.Publish{Name: plainChannel})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("was held: %t", held)
	},
}

// acquired formats the reply to an acquire of any kind.
func acquired(r lua.AcquireReply, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case r.Status == lua.Lost:
		return "the hold to re-enter is gone"
	case r.Status == lua.Held:
		text := "held"
		if r.Holder != "" {
			text += " by " + r.Holder
		}
		if r.TTL < 0 {
			text += ", without expiry"
		} else {
			text += " for " + seconds(r.TTL.Milliseconds())
		}
		if r.Joined {
			text += ", joined"
		}
		return text
	case r.Token != 0:
		return fmt.Sprintf("acquired, token %d", r.Token)
	}
	return "acquired"
}

// releasedText formats the reply to a release of any kind.
func releasedText(r lua.ReleaseReply) string {
	text := map[lua.Released]string{
		lua.NotHeld: "not held", lua.Freed: "released", lua.Granted: "granted to another process", lua.HandedOff: "handed off",
	}[r.Status]
	if r.Token != 0 {
		text += fmt.Sprintf(", token %d", r.Token)
	}
	if r.Several {
		text += ", several listen"
	}
	if r.Outsiders {
		text += ", others may ask first"
	}
	if r.WithoutQueue {
		text += ", without the queue"
	}
	return text
}

// renewed formats the reply to a renewal.
func renewed(verdicts []lua.Renewal, err error) string {
	if err != nil {
		return err.Error()
	}
	text := ""
	for i, v := range verdicts {
		if i > 0 {
			text += ", "
		}
		text += map[lua.Renewal]string{lua.Renewed: "renewed", lua.Gone: "gone", lua.Refused: "refused"}[v]
	}
	return text
}

func TestTicketConversations(t *testing.T) {
	t.Parallel()
	converse(t, "testdata/ticket", plainChannel, ticketDirectives)
}

// Directives for tickets, in addition to those for plain and read/write locks. A ticket is written like an owner, A0007; with "write" the lock is the
// write side of a read/write lock, and ":write" is added to all owners:
//
//	export OWNER to=TICKET [for=1m] [write]
//	adopt OWNER of=TICKET [lease=30s] [fence] [write]
var ticketDirectives = func() map[string]directive {
	all := maps.Clone(plainDirectives)
	maps.Copy(all, rwDirectives)
	all["force"] = plainDirectives["force"]
	all["export"] = func(c *conversation, d *datadriven.TestData) string {
		a := lua.ReleaseArgs{
			Name: plainName, Owner: ownerArg(d), Ticket: longNames(textArg(d, "to", "")), Taken: time.Now().Add(durationArg(d, "for", time.Minute)),
			Publish: lua.Publish{Name: plainChannel},
		}
		if d.HasArg("write") {
			a.Side, a.Owner, a.Ticket, a.Publish.Name = lua.Writer, a.Owner+":write", a.Ticket+":write", rwChannel
		}
		r, err := lua.Release(c.t.Context(), c.rdb, a)
		if err != nil {
			return err.Error()
		}
		if r.Status == lua.Freed {
			return "exported"
		}
		return releasedText(r)
	}
	all["adopt"] = func(c *conversation, d *datadriven.TestData) string {
		a := lua.AcquireArgs{
			Name: plainName, Owner: ownerArg(d), Ticket: longNames(textArg(d, "of", "")), Lease: durationArg(d, "lease", 30*time.Second), Count: 1,
			Publish: lua.Publish{Name: plainChannel},
		}
		if d.HasArg("write") {
			a.Side, a.Owner, a.Ticket, a.Publish.Name = lua.Writer, a.Owner+":write", a.Ticket+":write", rwChannel
		}
		if d.HasArg("fence") {
			a.Fence = plainFence
		}
		r, err := lua.Acquire(c.t.Context(), c.rdb, a)
		if r.Status == lua.Lost {
			return "the ticket has no lock"
		}
		return acquired(r, err)
	}
	return all
}()
