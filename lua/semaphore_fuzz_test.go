package lua_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

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
