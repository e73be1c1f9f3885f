package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"
)

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
func screenRows(locks []wanted, deadlocks bool, across int) [][]string {
	const least = 10
	others := 44
	if deadlocks {
		others += len("DEADLOCK  ")
	}
	rows := topRows(locks)
	for i, row := range rows {
		if most := max(least, across-others); width(row[0]) > most {
			row[0] = cut(row[0], most-1) + "…"
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
func topScreen(where string, seen sight, trouble error, height, across int) []byte {
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
	for _, err := range seen.missing {
		fmt.Fprintln(&text, clean(trimPrefix(err)))
	}
	if !seen.at.IsZero() {
		some := seen.deadlocks.many > 0
		table(&text, screenColumns(topHeader, some), screenRows(seen.locks, some, across), true)
	}
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	out := bytes.NewBufferString("\x1b[H")
	for i, line := range lines[:min(len(lines), height)] {
		if i > 0 {
			out.WriteString("\r\n")
		}
		out.WriteString(cut(line, across) + "\x1b[K") // clear the rest of the previous screen
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
