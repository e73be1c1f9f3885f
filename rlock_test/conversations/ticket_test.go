package conversations

import (
	"maps"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/go-rlock/rlock/lua"
)

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
