package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"
)

const usageTop = `usage: rlock top [flags]

Shows the locks with waiters, most contended first, their holders, and how long
these have held them. It refreshes every second until q or Ctrl-C. Waiters are
counted by their unlock channels, so Redisson's are included; a process counts
for half a second after its last waiter has gone. DEADLOCK numbers the locks
whose sections wait for each other, in programs with Options.Deadlock; see
"rlock deadlocks".

  -n N         look N times (default: until q on a terminal, otherwise once)
  -json        print one line of JSON per lock and look
` + usageTarget + `
SINCE is how long rlock top has seen this holder; each hand-over starts it
again. Piped, columns are separated by tabs, without a header.

exit code  0   2 usage   125 Redis failed
`

const (
	topInterval = time.Second // between two looks
	topMost     = 1000        // locks read per look
)

// wanted is a lock with waiters.
type wanted struct {
	state
	Waiting int64   `json:"waiting_processes"`
	Since   float64 `json:"seen_s"`          // seconds since its holders were first seen
	Error   string  `json:"error,omitempty"` // why the holder is unknown

	Deadlock int `json:"deadlock,omitempty"` // number of the deadlock of one of its holders, from 1
}

// top is the state kept between looks.
type top struct {
	*viewer
	since map[string]sighting // by key
}

// sighting is when a lock's holders were first seen.
type sighting struct {
	owners string
	at     time.Time
}

func (p *program) top(args []string) int {
	var t target
	flags := p.flags("top", &t)
	times := flags.Int("n", 0, "")
	asJSON := flags.Bool("json", false, "")
	if code, ok := p.parse(flags, args); !ok {
		return code
	}
	live := isTerminal(p.out) && p.getenv("TERM") != "dumb" && *times == 0 && !*asJSON
	switch {
	case flags.NArg() > 0:
		return p.misuse(errors.New("top takes flags only"), "top")
	case *times < 0:
		return p.misuse(errors.New("-n can't be negative"), "top")
	case *times == 0 && !live:
		*times = 1
	}
	if live { // looks run in the background, so it exits at once after it has left the screen
		ctx, stop := interruptible()
		defer stop()
		v, code, ok := p.open(ctx, t)
		if !ok {
			return code
		}
		defer v.close()
		return p.topLive(ctx, &top{v, make(map[string]sighting)})
	}
	return p.interruptibly(func(ctx context.Context, _ func()) int {
		v, code, ok := p.open(ctx, t)
		if !ok {
			return code
		}
		defer v.close()
		view := &top{v, make(map[string]sighting)}
		ticker := time.NewTicker(topInterval)
		defer ticker.Stop()
		for i := 0; ; {
			seen, err := view.look(ctx)
			switch {
			case err != nil:
				return p.failed(ctx, v.at(err))
			case *asJSON:
				for i := range seen.locks {
					p.json(seen.locks[i])
				}
			default:
				table(p.out, topHeader, topRows(seen.locks), isTerminal(p.out))
			}
			if seen.left > 0 {
				fmt.Fprintf(p.err, "rlock: showing the %d most contended locks; %d more have waiters\n", len(seen.locks), seen.left)
			}
			if err := seen.deadlocks.err; err != nil {
				fmt.Fprintf(p.err, "rlock: deadlocks are unknown: %v\n", err)
			}
			if i++; i == *times {
				return 0
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return endCode(ctx)
			}
		}
	})
}

// sight is the result of a look.
type sight struct {
	locks     []wanted
	left      int // number of further locks with waiters
	at        time.Time
	deadlocks circles
}

// look finds the locks with waiters.
func (t *top) look(ctx context.Context) (sight, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	circles := t.circles(ctx) // concurrently with the rest
	channels := make(map[string]*listeners)
	var down error
	answers := false
	for _, n := range nodes(t.rdb) { // waiters may listen at any node of a cluster
		if err := n.listening(ctx, channels); err != nil {
			down = fmt.Errorf("%s: PUBSUB: %w", n.addr, err)
			continue
		}
		answers = true
	}
	if !answers {
		return sight{}, down
	}
	waiting, counters := make(map[string]int64), make(map[string]string) // by key
	for channel, l := range channels {
		for _, key := range keysOf(channel) {
			switch {
			case strings.HasPrefix(channel, latchChannel):
				counters[key] = latchKind
			case strings.HasPrefix(channel, semaphoreChannel+":"):
				counters[key] = semaphoreKind
			}
			if many := l.count(); many > 0 && strings.HasPrefix(key, t.prefix) {
				waiting[key] += many
			}
		}
	}
	// Only the most wanted ones, to keep a look fast.
	keys := slices.SortedFunc(maps.Keys(waiting), func(a, b string) int {
		return cmp.Or(cmp.Compare(waiting[b], waiting[a]), strings.Compare(a, b))
	})
	seen, all := sight{at: time.Now()}, waiting
	waiting = make(map[string]int64)
	second := func(key string) bool { // the other of the two names of one channel
		return strings.HasPrefix(key, "{") && all[twin(key)] > 0
	}
	for _, key := range keys {
		switch {
		case second(key):
		case len(waiting) == topMost:
			seen.left++
		default:
			waiting[key] = all[key]
		}
	}
	for _, key := range keys {
		if second(key) && waiting[twin(key)] > 0 {
			waiting[key] = all[key]
		}
	}
	looked := slices.Sorted(maps.Keys(waiting))
	held, failed := t.read(ctx, looked)
	for i := range held {
		held[i].waitedAs(counters[held[i].key])
	}
	seen.locks = t.wanted(waiting, held, failed)
	at := make([]*state, len(seen.locks))
	for i := range seen.locks {
		at[i] = &seen.locks[i].state
	}
	t.addLabels(ctx, at...)
	noteUnlabelledBeside(at)
	seen.deadlocks = <-circles
	seen.deadlocks.mark(seen.locks)
	return seen, nil
}

// wanted combines the results, and remembers the holders.
func (t *top) wanted(waiting map[string]int64, held []state, failed map[string]error) []wanted {
	now, since := time.Now(), make(map[string]sighting)
	locks, known := []wanted{}, make(map[string]bool)
	for _, s := range held {
		seen := sighting{fmt.Sprint(s.owners()), now}
		if before := t.since[s.key]; before.owners == seen.owners {
			seen.at = before.at
		}
		since[s.key] = seen
		locks = append(locks, wanted{state: s, Waiting: waiting[s.key], Since: now.Sub(seen.at).Seconds()})
		known[s.key] = true
	}
	for key, many := range waiting {
		_, both := waiting[twin(key)] // one channel, two names: take the held one, otherwise the plain one
		if known[key] || both && (known[twin(key)] || strings.HasPrefix(key, "{")) {
			continue
		}
		w := wanted{state: t.named(key), Waiting: many}
		w.Holders = []holder{}
		if err := failed[key]; err != nil {
			w.Error = err.Error()
		}
		locks = append(locks, w)
	}
	t.since = since
	slices.SortFunc(locks, func(a, b wanted) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), strings.Compare(a.Name, b.Name))
	})
	return locks
}

// twin returns the other key with the same channel, if any.
func twin(key string) string {
	if inner, ok := strings.CutPrefix(key, "{"); ok {
		return strings.TrimSuffix(inner, "}")
	}
	return "{" + key + "}"
}

var topHeader = []string{"NAME", "WAITING", "KIND", "HOLDER", "SINCE", "TTL", "DEADLOCK"}

func topRows(locks []wanted) [][]string {
	var rows [][]string
	for i := range locks {
		l := &locks[i]
		row := []string{printable(l.Name), strconv.FormatInt(l.Waiting, 10), "-", "free", "-", "-", "-"}
		if l.Error != "" {
			row[3] = l.Error
		}
		if len(l.Holders) > 0 || l.isCounter() {
			row = append(row[:2], l.Kind, l.holders(), short(time.Duration(l.Since*float64(time.Second))), l.ttl(), "-")
		}
		if l.Deadlock > 0 {
			row[6] = strconv.Itoa(l.Deadlock)
		}
		rows = append(rows, row)
	}
	return rows
}

// screenColumns are a row's cells in screen order; what a narrow screen cuts off comes last. Without deadlocks there is no such column.
func screenColumns(row []string, deadlocks bool) []string {
	name, waiting, kind, holder, since, ttl, deadlock := row[0], row[1], row[2], row[3], row[4], row[5], row[6]
	if deadlocks {
		return []string{name, waiting, kind, since, ttl, deadlock, holder}
	}
	return []string{name, waiting, kind, since, ttl, holder}
}

// screenRows keeps the columns, and the start of a holder, in place however long the names are.
func screenRows(locks []wanted, deadlocks bool, width int) [][]string {
	const least = 10
	others := 44
	if deadlocks {
		others += len("DEADLOCK  ")
	}
	rows := topRows(locks)
	for i, row := range rows {
		if name, most := []rune(row[0]), max(least, width-others); len(name) > most {
			row[0] = string(name[:most-1]) + "…"
		}
		rows[i] = screenColumns(row, deadlocks)
	}
	return rows
}

// topLive redraws the screen until a signal or q. While Redis is silent it goes on, and says so.
func (p *program) topLive(ctx context.Context, t *top) int {
	jobs := make(chan os.Signal, 2)
	if signals := jobSignals(); len(signals) > 0 {
		signal.Notify(jobs, signals...)
		defer signal.Stop(jobs)
	}
	keys := p.keys()
	enter := func() {
		keys.set()
		fmt.Fprint(p.out, "\x1b[?1049h\x1b[?25l") // alternate screen, no cursor
	}
	leave := func() {
		fmt.Fprint(p.out, "\x1b[?25h\x1b[?1049l")
		keys.restore()
	}
	enter()
	defer leave()
	type answer struct {
		sight
		err error
	}
	answers, asked := make(chan answer, 1), time.Now()
	ask := func() {
		asked = time.Now()
		go func() { // ends with the look
			s, err := t.look(ctx)
			answers <- answer{s, err}
		}()
	}
	ask()
	asking := true
	var last sight
	var trouble error
	draw := func() {
		height, width := p.size()
		_, _ = p.out.Write(topScreen(strings.Join(t.where, ","), last, trouble, height, width))
	}
	ticker := time.NewTicker(topInterval)
	defer ticker.Stop()
	for {
		select {
		case a := <-answers:
			if asking, trouble = false, nil; a.err != nil {
				trouble = t.at(a.err)
			} else {
				last = a.sight
			}
			draw()
		case <-ticker.C:
			switch {
			case !asking:
				ask()
				asking = true
			case time.Since(asked) >= topInterval:
				trouble = fmt.Errorf("no answer for %s", short(time.Since(asked)))
				draw()
			}
		case s := <-jobs:
			if !continues(s) {
				leave()
				stopSelf()
			}
			enter()
			draw()
		case key := <-keys.pressed:
			if key == 'q' || key == 'Q' {
				return 0
			}
		case <-ctx.Done():
			return 0
		}
	}
}

// topScreen returns one screen, cut to its size. With trouble, it shows the previous look.
func topScreen(where string, seen sight, trouble error, height, width int) []byte {
	var text bytes.Buffer
	holders := 0
	for i := range seen.locks {
		if len(seen.locks[i].Holders) > 0 || seen.locks[i].Acquired > 0 {
			holders++
		}
	}
	fmt.Fprintf(&text, "rlock top  %s  %s  ", where, time.Now().Format(time.TimeOnly))
	switch {
	case seen.at.IsZero():
	case seen.left > 0:
		fmt.Fprintf(&text, "%d waited for; of the first %d held: %d  ", len(seen.locks)+seen.left, len(seen.locks), holders)
	default:
		fmt.Fprintf(&text, "%d waited for, %d of them held  ", len(seen.locks), holders)
	}
	fmt.Fprintf(&text, "%s(q ends)\n", seen.deadlocks.text())
	if trouble == nil {
		fmt.Fprintln(&text)
	} else {
		fmt.Fprintln(&text, clean(trimPrefix(trouble)))
		if !seen.at.IsZero() {
			fmt.Fprintf(&text, "as it was at %s\n", seen.at.Format(time.TimeOnly))
		}
	}
	if !seen.at.IsZero() {
		some := seen.deadlocks.many > 0
		table(&text, screenColumns(topHeader, some), screenRows(seen.locks, some, width), true)
	}
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	out := bytes.NewBufferString("\x1b[H")
	for i, line := range lines[:min(len(lines), height)] {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width])
		}
		if i > 0 {
			out.WriteString("\r\n")
		}
		out.WriteString(line + "\x1b[K") // clear the rest of the previous screen
	}
	out.WriteString("\x1b[J")
	return out.Bytes()
}

// keyboard is a terminal in a mode that reports each key.
type keyboard struct {
	pressed      chan byte
	set, restore func()
}

// keys delivers pressed keys. Without stty, which every Unix has, Enter is needed.
func (p *program) keys() keyboard {
	k := keyboard{make(chan byte), func() {}, func() {}}
	if !isTerminal(p.in) {
		return k
	}
	if before, err := p.stty("-g"); err == nil {
		k.set = func() { _, _ = p.stty("-icanon", "-echo", "min", "1") }
		k.restore = func() { _, _ = p.stty(strings.TrimSpace(before)) }
	}
	go func() { // ends with the process, like the terminal's last line
		for key := make([]byte, 1); ; {
			if n, err := p.in.Read(key); n == 0 || err != nil {
				return
			}
			k.pressed <- key[0]
		}
	}()
	return k
}

// size returns the terminal's size in characters.
func (p *program) size() (height, width int) {
	text, _ := p.stty("size")
	if n, _ := fmt.Sscan(text, &height, &width); n < 2 || height < 1 || width < 1 {
		return 24, 80
	}
	return height, width
}

// stty queries or sets the terminal.
func (p *program) stty(args ...string) (string, error) {
	cmd := exec.Command("stty", args...)
	cmd.Stdin = p.terminal()
	out, err := cmd.Output()
	return string(out), err
}

// terminal is stdin, or stdout's terminal if stdin is none.
func (p *program) terminal() *os.File {
	if isTerminal(p.in) {
		return p.in
	}
	return p.out
}
