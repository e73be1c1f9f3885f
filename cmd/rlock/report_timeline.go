package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timeline is what the page of a recording shows.
type timeline struct {
	headings  []heading
	first     time.Time
	last      time.Time // of the events so far
	locks     map[string]*lockLine
	clients   map[string]*client
	marks     []mark
	damaged   int
	downSince time.Time
	beyond    int64
	many      int // events
}

// lockLine is what happened to a lock.
type lockLine struct {
	name    string
	kind    string
	stints  []*stint
	holding map[string]*stint // open ones, by owner
	waiting map[string]*stint // open ones, by owner or Client
	others  *stint            // further waiters
	unlocks int
	ended   time.Time // the last hold
}

// client is a process.
type client struct {
	id, label string
	number    int // in the page
}

// The ends of a stint, as the page knows them.
const (
	endOK       = 0 // released; got the lock
	endExpired  = 1
	endGone     = 2
	endForced   = 3
	endVanished = 4
	endOpen     = 5 // not seen: the recording was over
	endGaveUp   = 6 // a wait without the lock
	endPassed   = 7 // held between two looks, by whom is unknown
	endUnseen   = 8 // a wait, perhaps with the lock: it passed on between two looks

	began   = 16 // it had begun before the first look
	writing = 32 // on the write side
)

// stint is a time in which an owner had a lock, or waited for it.
type stint struct {
	waits    bool
	owner    string // "" if unknown
	count    int64  // of processes, if unknown
	from, to time.Time
	in, out  int64 // ms before from and to in which they happened
	how      int   // an end, and began
}

// mark is something that concerns all locks.
type mark struct {
	from, to time.Time // the same for a moment
	what     string
}

func newTimeline() *timeline {
	return &timeline{locks: make(map[string]*lockLine), clients: make(map[string]*client)}
}

// begin starts a recording, perhaps after another.
func (t *timeline) begin(h heading) {
	if len(t.headings) == 0 {
		t.first, t.last = h.Time, h.Time
	} else {
		t.closeAll()
		t.marks = append(t.marks, mark{t.last, h.Time, "not recorded"})
		t.last = laterOf(t.last, h.Time)
	}
	t.headings = append(t.headings, h)
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// closeAll ends what is open: nobody knows how.
func (t *timeline) closeAll() {
	for _, l := range t.locks {
		for _, s := range l.holding {
			s.close(t.last, 0, endOpen)
		}
		for _, s := range l.waiting {
			s.close(t.last, 0, endOpen)
		}
		if l.others != nil {
			l.others.close(t.last, 0, endOpen)
		}
		clear(l.holding)
		clear(l.waiting)
		l.others = nil
	}
	t.isUp(t.last)
}

func (t *timeline) isUp(at time.Time) {
	if !t.downSince.IsZero() {
		t.marks = append(t.marks, mark{t.downSince, at, "Redis did not answer"})
		t.downSince = time.Time{}
	}
}

func (t *timeline) finish() {
	t.closeAll()
	slices.SortStableFunc(t.marks, func(a, b mark) int { return a.from.Compare(b.from) })
}

func (s *stint) close(at time.Time, within int64, how int) {
	s.to, s.out = laterOf(s.from, at), within
	s.how |= how
}

// line returns a lock's.
func (t *timeline) line(e *event) *lockLine {
	name := e.lock()
	l := t.locks[name]
	if l == nil {
		l = &lockLine{name: name, holding: make(map[string]*stint), waiting: make(map[string]*stint)}
		t.locks[name] = l
	}
	switch e.Kind {
	case "read", "write": // which of them changes
		l.kind = "read/write"
	default:
		l.kind = cmp.Or(e.Kind, l.kind)
	}
	return l
}

func (l *lockLine) open(s *stint, e *event) *stint {
	s.owner, s.from, s.in = e.Owner, e.Time, e.Within
	l.stints = append(l.stints, s)
	return s
}

// add adds an event. Those that it does not know, and that contradict each other, change nothing.
func (t *timeline) add(e event) {
	t.many++
	t.last = laterOf(t.last, e.Time)
	if id := clientID(e.Owner); e.Owner != "" {
		c := t.clients[id]
		if c == nil {
			c = &client{id: id}
			t.clients[id] = c
		}
		c.label = cmp.Or(e.Label, c.label)
	}
	switch e.Event {
	case eventDown:
		if t.downSince.IsZero() {
			t.downSince = e.Time
		}
	case eventUp:
		t.isUp(e.Time)
	case eventRestart:
		t.marks = append(t.marks, mark{e.Time, e.Time, "Redis was restarted"})
	case eventDeaf:
		t.marks = append(t.marks, mark{e.Time, e.Time.Add(deafTime), "too many messages: not heard"})
	case eventMore:
		if e.Count != nil {
			t.beyond = max(t.beyond, *e.Count)
		}
	case eventHeld, eventAcquired, eventReleased, eventExpired, eventGone, eventForced, eventVanished, eventPassed, eventWaits, eventLeft, eventOthers:
		t.line(&e).add(&e)
	}
}

// ends are how holds end.
var ends = map[string]int{
	eventReleased: endOK, eventExpired: endExpired, eventGone: endGone, eventForced: endForced, eventVanished: endVanished,
}

func (l *lockLine) add(e *event) {
	if e.Event != eventWaits && e.Event != eventLeft {
		l.unlocks += e.Unlocks
	}
	switch e.Event {
	case eventHeld, eventAcquired:
		if l.holding[e.Owner] == nil {
			s := &stint{}
			if e.Event == eventHeld {
				s.how = began
			}
			l.holding[e.Owner] = l.open(s, e)
		}
		l.gets(e, e.Owner)
	case eventPassed:
		s := l.open(&stint{how: endPassed}, e)
		s.from, s.to = laterOf(l.ended, e.Time.Add(-time.Duration(e.Within)*time.Millisecond)), e.Time
	case eventWaits:
		if l.waiting[e.Owner] == nil {
			l.waiting[e.Owner] = l.open(&stint{waits: true}, e)
		}
	case eventLeft:
		for owner, s := range l.holding { // a Client that waits for the read side
			if l.waiting[e.Owner] != nil && clientID(owner) == e.Owner && !s.from.Before(l.waiting[e.Owner].from) {
				l.gets(e, e.Owner)
			}
		}
		how := endGaveUp
		if e.Unlocks > 0 {
			how = endUnseen
		}
		l.ends(l.waiting, e, how)
	case eventOthers:
		if l.others != nil {
			l.others.close(e.Time, e.Within, endGaveUp)
			l.others = nil
		}
		if e.Count != nil && *e.Count > 0 {
			l.others = l.open(&stint{waits: true, count: *e.Count}, e)
		}
	default:
		l.ends(l.holding, e, ends[e.Event])
		l.ended = e.Time
	}
}

// gets ends a wait: it has the lock.
func (l *lockLine) gets(e *event, owner string) {
	if s := l.waiting[owner]; s != nil {
		s.close(e.Time, e.Within, endOK)
		delete(l.waiting, owner)
	}
}

func (l *lockLine) ends(open map[string]*stint, e *event, how int) {
	if s := open[e.Owner]; s != nil {
		s.close(e.Time, e.Within, how)
		delete(open, e.Owner)
	}
}

const (
	mostHoldLanes = 4 // beside each other; more share the last
	mostWaitLanes = 6
)

// lane are stints that do not overlap, but in the last one.
type lane struct {
	waits  bool
	stints []*stint
}

// lanes spreads a lock's stints.
func (l *lockLine) lanes() (all []lane) {
	slices.SortStableFunc(l.stints, func(a, b *stint) int { return a.from.Compare(b.from) })
	for _, waits := range []bool{false, true} {
		most := mostHoldLanes
		if waits {
			most = mostWaitLanes
		}
		var lanes []lane
		for _, s := range l.stints {
			if s.waits != waits {
				continue
			}
			at := slices.IndexFunc(lanes, func(o lane) bool { return !o.stints[len(o.stints)-1].to.After(s.from) })
			switch {
			case at >= 0:
			case len(lanes) < most:
				at = len(lanes)
				lanes = append(lanes, lane{waits: waits})
			default:
				at = most - 1
			}
			lanes[at].stints = append(lanes[at].stints, s)
		}
		all = append(all, lanes...)
	}
	return all
}

// packer writes stints for the page, as numbers of 7 bits a byte, lowest first (report.js reads them).
type packer struct {
	t       *timeline
	clients []*client
	tags    []string // that are no numbers
	tagAt   map[string]int
	bytes   []byte
}

func (p *packer) number(n int64) {
	for n = max(n, 0); n > 127; n >>= 7 {
		p.bytes = append(p.bytes, byte(n)|128)
	}
	p.bytes = append(p.bytes, byte(n))
}

// stint writes: ms from the beginning of the one before, duration, flags, in, out, client or 0, and the tag or the count.
func (p *packer) stint(s *stint, before time.Time) {
	how := s.how
	owner := s.owner
	if text, ok := strings.CutSuffix(owner, ":write"); ok {
		owner, how = text, how|writing
	}
	p.number(s.from.Sub(before).Milliseconds())
	p.number(s.to.Sub(s.from).Milliseconds())
	p.number(int64(how))
	p.number(s.in)
	p.number(s.out)
	if owner == "" {
		p.number(0)
		p.number(s.count)
		return
	}
	id, tag, _ := strings.Cut(owner, ":")
	c := p.t.clients[id]
	if c.number == 0 {
		p.clients = append(p.clients, c)
		c.number = len(p.clients)
	}
	p.number(int64(c.number))
	p.tag(tag)
}

// tag writes what follows the Client's id in an owner. The last two bits of the number tell what the others are.
func (p *packer) tag(tag string) {
	const most = 1 << 31
	small := func(text string) (int64, bool) {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil && n >= 0 && n < most && strconv.FormatInt(n, 10) == text
	}
	if n, ok := small(tag); ok {
		p.number(n << 2)
		return
	}
	if n, ok := small(strings.TrimPrefix(tag, "0")); ok {
		p.number(n<<2 | 2)
		return
	}
	if mark, rest := tag[:min(2, len(tag))], tag[min(2, len(tag)):]; len(tag) == 20 && mark[0] == '1' {
		if n, ok := small(cmp.Or(strings.TrimLeft(rest, "0"), "0")); ok {
			if bits, ok := small(mark); ok {
				p.number(n<<2 | 3)
				p.number(bits)
				return
			}
		}
	}
	at, ok := p.tagAt[tag]
	if !ok {
		at = len(p.tags)
		p.tags, p.tagAt[tag] = append(p.tags, tag), at
	}
	p.number(int64(at)<<2 | 1)
}
