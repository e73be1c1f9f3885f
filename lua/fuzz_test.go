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

	"github.com/go-rlock/rlock/internal/testing/require"
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
	_, _ = lua.Wake(ctx, c, lua.Fair{}, lua.Publish{}, []lua.Place{{Name: "a", Owner: me}})
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

// FuzzSemaphoreTexts sends the input as the text of a reply, and compares the functions' results with the only texts that mean success.
func FuzzSemaphoreTexts(f *testing.F) {
	for _, text := range []string{
		"5|-1|0|1|||", "5|-1|0|1|1,2||", "-5|300|0|0|1||", "5|-1|1|1|1,2|0,3|2", "5|0|0|0|||0", "0|60000|0|1|2|7|1", "5|-1|0|1|2,1||", "5|-1|0|1|3||",
		"5|-1|0|1|0||", "5|-1|2|1|||", "5|-1|-1|1|||", "5|-1|0|1|1,2|0|1", "5|-1|0|1|||3", "5|-1|0|1|||-1", "5|-1|0|1||", "5|-1|0|1||||", "||||||", "",
		"9223372036854775807|9223372036854775807|0|1|||", "9223372036854775808|-1|0|1|||", "5|-1|0|1|1,|0,|", " 5|-1|0|1|||", "5|-1|0|1.5|||", "+5|-1|0|1|||",
	} {
		f.Add(text)
	}
	p := &parrot{}
	c := p.client(f)
	f.Fuzz(func(t *testing.T, text string) {
		p.say(fmt.Sprintf("$%d\r\n%s\r\n", len(text), text))
		want, ok := semaphoreReply(text)
		a := lua.SemaphoreArgs{Wants: []int64{1, 1}}
		got, err := lua.UseSemaphore(t.Context(), c, a)
		if (err == nil) != ok || ok && fmt.Sprint(got) != fmt.Sprint(want.SemaphoreReply) {
			t.Fatalf("%q is %+v, %v", text, got, err)
		}
		b := lua.PermitsArgs{SemaphoreArgs: a, IDs: ids(1, 2), Release: ids(3, 3)}
		permits, err := lua.UsePermits(t.Context(), c, b)
		ok = ok && len(want.Slots) == len(want.Granted) && len(want.Released) == 1
		if (err == nil) != ok || ok && fmt.Sprint(permits) != fmt.Sprint(want) {
			t.Fatalf("%q is %+v, %v", text, permits, err)
		}
	})
}

var aReply = regexp.MustCompile(`^([+-]?\d+)\|([+-]?\d+)\|([+-]?\d+)\|([+-]?\d+)\|([+\-\d,]*)\|([+\-\d,]*)\|([+\-\d,]*)$`)

// semaphoreReply returns the meaning of a reply to a call with two wants.
func semaphoreReply(text string) (r lua.PermitsReply, ok bool) {
	m := aReply.FindStringSubmatch(text)
	if m == nil {
		return r, false
	}
	ok = true
	numbers := func(list string) (all []int64) {
		if list == "" {
			return nil
		}
		for part := range strings.SplitSeq(list, ",") {
			n, err := strconv.ParseInt(part, 10, 64)
			ok = ok && err == nil
			all = append(all, n)
		}
		return all
	}
	free, again, more, done := numbers(m[1]), numbers(m[2]), numbers(m[3]), numbers(m[4])
	granted, slots, given := numbers(m[5]), numbers(m[6]), numbers(m[7])
	if !ok || more[0] != 0 && more[0] != 1 {
		return r, false
	}
	last := int64(0)
	for _, n := range granted {
		if n <= last || n > 2 {
			return r, false
		}
		last = n
		r.Granted = append(r.Granted, int(n-1))
	}
	for _, n := range given {
		if n < 0 || n > 2 {
			return r, false
		}
		r.Released = append(r.Released, lua.Given(n+1))
	}
	const longest = int64(1<<63-1) / int64(time.Millisecond)
	r.Again = time.Duration(1<<63 - 1)
	if again[0] <= longest {
		r.Again = time.Duration(max(again[0], 0)) * time.Millisecond
	}
	r.Free, r.Done, r.More, r.Slots = free[0], done[0], more[0] == 1, slots
	return r, true
}

// FuzzSemaphoreReplies turns the input into RESP values, and compares the functions' results with the only values that mean success.
func FuzzSemaphoreReplies(f *testing.F) {
	f.Add([]byte{':', 0})
	f.Add([]byte{':', 1})
	f.Add([]byte{'*', 2, ':', 1, ':', 0})
	f.Add([]byte{'*', 4, ':', 1, ':', 2, ':', 3, ':', 4})
	f.Add([]byte{'*', 4, ':', 1, ':', 0, ':', 0xff, ':', 0xfe})
	f.Add([]byte{'_', 0})
	p := &parrot{}
	c := p.client(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		text, _ := value(in, 0)
		for _, reply := range []string{text, wrapped(in, 4), wrapped(in, 7)} {
			p.say(reply)
			v, _ := parsed(reply)
			a := lua.SemaphoreArgs{Wants: []int64{1, 1}}
			got, err := lua.UseSemaphore(t.Context(), c, a)
			if err == nil {
				t.Fatalf("%q is %+v", reply, got)
			}
			permits, err := lua.UsePermits(t.Context(), c, lua.PermitsArgs{SemaphoreArgs: a, IDs: ids(1, 2), Release: ids(3, 3)})
			if err == nil {
				t.Fatalf("%q is %+v", reply, permits)
			}
			_, err = lua.RenewPermits(t.Context(), c, time.Second, []lua.PermitsToRenew{{Timeouts: "t", IDs: ids(1, 2)}})
			ok := v.areNumbers() && len(v.list) == 2 && v.list[0].n >= -1 && v.list[0].n <= 1 && v.list[1].n >= -1 && v.list[1].n <= 1
			if (err == nil) != ok {
				t.Fatalf("%q renews: %v", reply, err)
			}
			_, err = lua.LookPermits(t.Context(), c, lua.PermitSemaphore{}, nil)
			if (err == nil) != (v.areNumbers() && len(v.list) == 4) {
				t.Fatalf("%q is looked at: %v", reply, err)
			}
			held, err := lua.SetPermitLease(t.Context(), c, lua.PermitSemaphore{}, id(1), time.Second)
			if held != (v.isNumber && v.n == 1) || (err == nil) != (v.isNumber && (v.n == 0 || v.n == 1)) {
				t.Fatalf("%q sets a lease: %t, %v", reply, held, err)
			}
		}
	})
}

// wrapped returns an array of n values.
func wrapped(in []byte, n int) string {
	reply := fmt.Sprintf("*%d\r\n", n)
	for range n {
		var item string
		item, in = value(in, 1)
		reply += item
	}
	return reply
}

// resp is a number, a list, or something else.
type resp struct {
	isNumber, isList bool
	n                int64
	list             []resp
}

func (v resp) areNumbers() bool {
	for _, item := range v.list {
		if !item.isNumber {
			return false
		}
	}
	return v.isList
}

// parsed reads the first value of a text.
func parsed(text string) (v resp, rest string) {
	line, rest, _ := strings.Cut(text, "\r\n")
	kind, head := line[0], line[1:]
	switch kind {
	case ':':
		n, err := strconv.ParseInt(head, 10, 64)
		return resp{isNumber: err == nil, n: n}, rest
	case '*', '~', '%':
		v.isList = kind != '%'
		n, _ := strconv.Atoi(head)
		n *= width(kind)
		for i := 0; i < n || head == "?" && !strings.HasPrefix(rest, "."); i++ {
			var item resp
			item, rest = parsed(rest)
			v.list = append(v.list, item)
		}
		if head == "?" {
			rest = rest[len(".\r\n"):]
		}
	case '$', '!', '=':
		_, rest, _ = strings.Cut(rest, "\r\n")
	}
	return v, rest
}

// The replies with a meaning, in Go's terms.
func TestPermitsReply(t *testing.T) {
	t.Parallel()
	p := &parrot{}
	c := p.client(t)
	p.say("$18\r\n5|-1|1|1|1,2|0,3|2\r\n")
	got, err := lua.UsePermits(t.Context(), c, lua.PermitsArgs{
		SemaphoreArgs: lua.SemaphoreArgs{Wants: []int64{1, 1}}, IDs: ids(1, 2), Release: ids(3, 3),
	})
	require.NoError(t, err)
	want := lua.PermitsReply{Slots: []int64{0, 3}, Released: []lua.Given{lua.PermitExpired}, More: true}
	want.Free, want.Done, want.Granted = 5, 1, []int{0, 1}
	require.Equal(t, want, got)
	require.Equal(t, "000000000000000000000000000000ff", lua.PermitID{15: 255}.String())
}
