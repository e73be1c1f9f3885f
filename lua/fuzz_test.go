package lua_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// FuzzReplies turns the input into RESP values, and compares the functions' results with the only values that mean success.
func FuzzReplies(f *testing.F) {
	f.Add([]byte{':', 1, '*', 2, ':', 1, ':', 1})
	f.Add([]byte{'*', 2, ':', 1, ':', 1})
	f.Add([]byte{'*', 3, ':', 1, '$', 1, ':', 1})
	f.Add([]byte{'*', 3, ':', 1, '$', 1, ':', 2})
	f.Add([]byte{'*', 4, ':', 1, '$', 1, ':', 1, ':', 1})
	f.Add([]byte{'*', 1, ':', 1})
	f.Add([]byte{':', 3})
	f.Add([]byte{'?', 1, ':', 1})
	f.Add([]byte{'*', 2, '*', 1, ':', 1, '#', 1})
	f.Add([]byte{'_', 0})
	for _, kind := range "~=!?%$+-,(#_" {
		f.Add([]byte{byte(kind), 2, ':', 1, ':', 1, ':', 1, ':', 1})
		f.Add([]byte{'*', 2, ':', 1, byte(kind), 1, ':', 1, ':', 1})
	}
	for _, n := range []int64{math.MaxInt64, math.MinInt64, math.MaxInt64/1_000_000 + 1} {
		f.Add(append(binary.BigEndian.AppendUint64([]byte{'*', 3, 'i', 0}, uint64(n)), '$', 1, ':', 0))
		f.Add(binary.BigEndian.AppendUint64([]byte{'*', 1, 'i', 0}, uint64(n)))
		f.Add(binary.BigEndian.AppendUint64([]byte{'i', 0}, uint64(n)))
		f.Add(binary.BigEndian.AppendUint64([]byte{'*', 2, ':', 1, 'i', 0}, uint64(n)))
	}
	p := &parrot{}
	c := p.client(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		reply, _ := value(in, 0)
		p.say(reply)
		got := ask(t.Context(), c)
		n, one := integer(reply)
		refused, list := refusal(reply)
		token, single := alone(reply)
		first, second, two := pair(reply)
		if (got.acquired.Status == lua.Acquired) != (one && n >= 0) || (got.err == nil) != (one && n >= -1 || list) {
			t.Fatalf("acquire: %q is %+v, %v", reply, got.acquired, got.err)
		}
		if a := got.acquired; list && ((a.TTL < 0) != (refused.TTL < 0) || a.Holder != refused.Holder ||
			a.Joined != refused.Joined || a.Place != refused.Place || a.Other != refused.Other) {
			t.Fatalf("acquire: %q is %+v", reply, a)
		}
		var released lua.ReleaseReply
		switch {
		case one && n >= 0 && n <= 2:
			released.Status = []lua.Released{lua.NotHeld, lua.Freed, lua.Granted}[n]
		case one && n == 3:
			released = lua.ReleaseReply{Status: lua.Freed, Several: true}
		case one && n == 4:
			released = lua.ReleaseReply{Status: lua.Freed, Several: true, Outsiders: true}
		case single && token >= 0:
			released = lua.ReleaseReply{Status: lua.HandedOff, Token: token}
		case two && first >= 0 && second > 0:
			released = lua.ReleaseReply{Status: lua.HandedOff, Token: first, Spare: second}
		}
		if got.released != released || (got.rel == nil) != (released.Status != 0) {
			t.Fatalf("release: %q is %v, %v", reply, got.released, got.rel)
		}
		if (got.ren == nil) != (two && first >= -1 && first <= 1 && second >= -1 && second <= 1) {
			t.Fatalf("renew: %q is %v, %v", reply, got.renewed, got.ren)
		}
		askOthers(t.Context(), c)
		if got.forced != (reply == ":1\r\n") || (got.frc == nil) != (reply == ":1\r\n" || reply == ":0\r\n") {
			t.Fatalf("force: %q is %v, %v", reply, got.forced, got.frc)
		}
	})
}

// askOthers calls the functions with other reply formats: no reply makes them panic.
func askOthers(ctx context.Context, c rueidis.Client) {
	_, _ = lua.AcquireAll(ctx, c, []lua.AcquireArgs{{Name: "a", Owner: me}, {Name: "b", Owner: me}})
	_, _ = lua.ReleaseEach(ctx, c, []lua.ReleaseArgs{{Name: "a", Owner: me}, {Name: "b", Owner: me}})
	_ = lua.ReleaseAll(ctx, c, []lua.ReleaseArgs{{Name: "a", Owner: me}, {Name: "b", Owner: me, Fair: lua.Fair{List: "l"}}})
	_, _ = lua.Acquire(ctx, c, lua.AcquireArgs{Name: "a", Owner: me, Count: 1, Fair: lua.Fair{List: "l"}, Join: true})
	_, _ = lua.Refresh(ctx, c, lua.Fair{}, lua.Publish{}, []lua.Place{{Name: "a", Owner: me}})
	_, _ = lua.Look(ctx, c, lua.InfoArgs{Name: "a", Queue: "q", Fence: "f"})
	_, _ = lua.IsLocked(ctx, c, "a", lua.Reader)
}

func integer(reply string) (n int64, ok bool) {
	_, _ = fmt.Sscanf(reply, ":%d\r\n", &n)
	return n, reply == fmt.Sprintf(":%d\r\n", n)
}

var aRefusal = regexp.MustCompile(`^[*~]([34?])\r\n:(-?\d+)\r\n(?:\+|\$\d+\r\n)(-?\d+)\r\n:(\d+)\r\n(:1\r\n)?(?:\.\r\n)?$`)

// refusal is pair for a list of an integer, a text, a 0, 1 or 2, and perhaps a 1. Its TTL is in ns.
func refusal(reply string) (r lua.AcquireReply, ok bool) {
	m := aRefusal.FindStringSubmatch(reply)
	if m == nil {
		return r, false
	}
	if n := m[1]; n == "3" && m[5] != "" || n == "4" && m[5] == "" {
		return r, false
	}
	ttl, err := strconv.ParseInt(m[2], 10, 64)
	place, tooLong := strconv.Atoi(m[4])
	return lua.AcquireReply{
		TTL: time.Duration(ttl), Holder: m[3], Joined: place != 0, Place: place, Other: m[5] != "",
	}, err == nil && tooLong == nil
}

// alone is pair for a list of one integer.
func alone(reply string) (n int64, ok bool) {
	for _, form := range []string{"*1\r\n:%d\r\n", "~1\r\n:%d\r\n", "*?\r\n:%d\r\n.\r\n"} {
		if got, _ := fmt.Sscanf(reply, form, &n); got == 1 && reply == fmt.Sprintf(form, n) {
			return n, true
		}
	}
	return 0, false
}

// pair reads a reply that is a list of two integers and nothing else. RESP3 has three ways to write
// one, and rueidis does not tell them apart.
func pair(reply string) (first, second int64, ok bool) {
	for _, form := range []string{"*2\r\n:%d\r\n:%d\r\n", "~2\r\n:%d\r\n:%d\r\n", "*?\r\n:%d\r\n:%d\r\n.\r\n"} {
		n, _ := fmt.Sscanf(reply, form, &first, &second)
		if n == 2 && reply == fmt.Sprintf(form, first, second) {
			return first, second, true
		}
	}
	return 0, 0, false
}

// value turns the front of in into one RESP value, and returns the rest of in.
func value(in []byte, depth int) (string, []byte) {
	if len(in) < 2 || depth > 3 {
		return "_\r\n", nil
	}
	kind, n, in := in[0], int(int8(in[1])), in[2:]
	text := strconv.Itoa(n)
	switch kind {
	case '*', '%', '~':
		return aggregate(string(kind)+strconv.Itoa(max(n%5, 0))+"\r\n", max(n%5, 0)*width(kind), in, depth)
	case '?': // an array of unannounced length
		reply, in := aggregate("*?\r\n", max(n%5, 0), in, depth)
		return reply + ".\r\n", in
	case '#':
		return []string{"#f\r\n", "#t\r\n"}[n&1], in
	case '$', '!':
		return fmt.Sprintf("%c%d\r\n%s\r\n", kind, len(text), text), in
	case '=':
		return fmt.Sprintf("=%d\r\ntxt:%s\r\n", len(text)+len("txt:"), text), in
	case '+', '-', ',', '(':
		return fmt.Sprintf("%c%d\r\n", kind, n), in
	case '_':
		return "_\r\n", in
	case 'i': // any integer
		if len(in) >= 8 {
			return fmt.Sprintf(":%d\r\n", int64(binary.BigEndian.Uint64(in))), in[8:]
		}
	}
	return ":" + text + "\r\n", in
}

func width(kind byte) int {
	if kind == '%' {
		return 2
	}
	return 1
}

func aggregate(head string, items int, in []byte, depth int) (string, []byte) {
	var reply strings.Builder
	reply.WriteString(head)
	for range items {
		var item string
		item, in = value(in, depth+1)
		reply.WriteString(item)
	}
	return reply.String(), in
}
