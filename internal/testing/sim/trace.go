package sim

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// kept is how many messages a trace keeps, the latest ones.
const kept = 200_000

// trace is the conversation of all processes with all servers.
type trace struct {
	mu        sync.Mutex // guards the fields below
	began     time.Time
	lines     []line // a ring once it has kept ones
	next      int
	published int // messages that a server sent to subscribers
}

type line struct {
	at time.Duration
	link
	up, lost bool
	data     []byte
	note     string // of the simulation itself
}

// link is a connection of a process to a server.
type link struct{ process, server, number int }

var message = []byte("$7\r\nmessage\r\n")

// add records data sent by one end of a link.
func (t *trace) add(l link, up bool, data []byte, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !up {
		t.published += bytes.Count(data, message)
	}
	t.put(line{link: l, up: up, lost: lost, data: bytes.Clone(data)})
}

// note records an action of the simulation.
func (t *trace) note(process int, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(line{link: link{process: process}, note: fmt.Sprintf(format, args...)})
}

func (t *trace) put(l line) {
	l.at = time.Since(t.began)
	if len(t.lines) < kept {
		t.lines = append(t.lines, l)
		return
	}
	t.lines[t.next] = l
	t.next = (t.next + 1) % kept
}

func (t *trace) delivered() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.published
}

// about returns the last lines that name the lock, and those of the simulation.
func (t *trace) about(name string, most int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []string
	asked := make(map[link]bool) // links with a call about the lock, whose answer does not name it
	for i := range t.lines {
		l := &t.lines[(t.next+i)%len(t.lines)]
		switch {
		case l.note != "":
			if l.process >= 0 && !strings.Contains(l.note, name) && !strings.HasPrefix(l.note, "fault") {
				continue
			}
			all = append(all, fmt.Sprintf("%12v  p%-3d %s", l.at.Round(time.Microsecond), l.process, l.note))
			continue
		case bytes.Contains(l.data, []byte(name)):
			asked[l.link] = l.up
		case !l.up && asked[l.link]:
			asked[l.link] = false
		default:
			continue
		}
		arrow, lost := "<-", ""
		if l.up {
			arrow = "->"
		}
		if l.lost {
			lost = " (lost)"
		}
		all = append(all, fmt.Sprintf("%12v  p%-3d %s s%d #%d %s%s",
			l.at.Round(time.Microsecond), l.process, arrow, l.server, l.number, readable(l.data), lost))
	}
	if len(all) > most {
		all = all[len(all)-most:]
	}
	return all
}

func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar })
}

// readable turns the protocol of Redis into one line.
func readable(data []byte) string {
	var b strings.Builder
	for len(data) > 0 && b.Len() < 400 {
		at := bytes.Index(data, []byte("\r\n"))
		if at < 0 {
			break
		}
		head := string(data[:at])
		data = data[at+2:]
		if head == "" {
			continue
		}
		switch head[0] {
		case '*':
			if b.Len() > 0 {
				b.WriteString("| ")
			}
		case '$':
			n, _ := strconv.Atoi(head[1:])
			if n < 0 || n > len(data) {
				b.WriteString("nil ")
				continue
			}
			text := string(data[:n])
			data = data[min(n+2, len(data)):]
			switch {
			case len(text) == 40 && !strings.ContainsAny(text, ":- "):
				text = text[:6] // the sum of a script
			case len(text) == 16 && !isPrintable(text):
				text = short(text) // the id of a permit
			}
			b.WriteString(strings.ReplaceAll(text, "\n", " ") + " ")
		default:
			b.WriteString(head + " ")
		}
	}
	return strings.TrimSpace(b.String())
}
