package conversations

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/go-rlock/rlock/lua"
)

// The latch in the conversations, with the names of docs/internals/protocol.md.
const (
	latchName    = "parts"
	latchChannel = "redisson_countdownlatch__channel__{parts}"
	latchRecord  = "rlock_latch:{parts}"
)

func TestLatchConversations(t *testing.T) {
	t.Parallel()
	converse(t, "testdata/latch", "", latchDirectives)
}

// Directives for latches. A call is named like an owner, by client and number.
//
//	set CALL N
//	down CALL [by=1]
//	delete CALL
//	look
var latchDirectives = map[string]directive{
	"set": func(c *conversation, d *datadriven.TestData) string {
		n, err := strconv.ParseInt(d.CmdArgs[1].String(), 10, 64)
		if err != nil {
			return err.Error()
		}
		return didText("set")(lua.SetCount(c.t.Context(), c.rdb, latchCall(d), n))
	},
	"down": func(c *conversation, d *datadriven.TestData) string {
		return didText("counted")(lua.CountDown(c.t.Context(), c.rdb, latchCall(d), int64(numberArg(d, "by", 1))))
	},
	"delete": func(c *conversation, d *datadriven.TestData) string {
		return didText("deleted")(lua.DeleteLatch(c.t.Context(), c.rdb, latchCall(d)))
	},
	"look": func(c *conversation, _ *datadriven.TestData) string {
		l, err := lua.LookAtLatch(c.t.Context(), c.rdb, latchName, latchRecord)
		n, errOfCount := lua.LatchCount(c.t.Context(), c.rdb, latchName)
		switch {
		case err != nil:
			return err.Error()
		case errOfCount != nil || n != l.Count:
			return fmt.Sprintf("the count is %d and %d: %v", l.Count, n, errOfCount)
		case l.TTL == 0:
			return "open, without a count"
		}
		text := "open"
		if l.Count > 0 {
			text = fmt.Sprintf("%d left", l.Count)
		}
		if l.TTL > 0 {
			text += " for " + seconds(l.TTL.Milliseconds())
		}
		if l.Set == "" {
			return text + ", nobody knows by whom it was set"
		}
		return text + ", set by " + l.Set
	},
}

func didText(what string) func(bool, error) string {
	return func(did bool, err error) string {
		switch {
		case err != nil:
			return err.Error()
		case did:
			return what
		}
		return "not " + what
	}
}

func latchCall(d *datadriven.TestData) lua.LatchCall {
	call := longClient.FindStringSubmatch(ownerArg(d))
	number, err := strconv.ParseUint(call[3], 10, 64)
	if err != nil {
		panic(err)
	}
	return lua.LatchCall{
		Name: latchName, Record: latchRecord, Client: call[0][:len(call[0])-len(call[2])-len(call[3])], Number: number, Keep: 2 * time.Minute,
		Publish: lua.Publish{Name: latchChannel},
	}
}
