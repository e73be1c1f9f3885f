package main

import (
	_ "embed" // the parts of the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

//go:embed page/report.html
var pageHTML string

//go:embed page/report.css
var pageCSS string

//go:embed page/report.js
var pageJS string

// pageData is what the page shows, but for the stints.
type pageData struct {
	From    int64       `json:"from"` // ms since 1970
	To      int64       `json:"to"`
	Redis   string      `json:"redis"`
	Pattern string      `json:"pattern"`
	Events  int         `json:"events"`
	Notes   []string    `json:"notes"`
	Clients [][2]string `json:"clients"` // id, label
	Tags    []string    `json:"tags"`
	Locks   []pageLock  `json:"locks"`
	Marks   []pageMark  `json:"marks"`
}

type pageLock struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Unlocks int      `json:"unlocks"`
	Lanes   [][2]int `json:"lanes"` // 1 for waits, and the number of stints
}

type pageMark struct {
	From int64  `json:"from"`
	To   int64  `json:"to"`
	What string `json:"what"`
}

// page writes the page. All that comes from Redis is data in it: JSON without <, and base64. The script shows it as text.
func (t *timeline) page(w io.Writer) error {
	names := make([]*lockLine, 0, len(t.locks))
	for _, l := range t.locks {
		names = append(names, l)
	}
	slices.SortFunc(names, func(a, b *lockLine) int { return strings.Compare(a.name, b.name) })
	p := &packer{t: t, tagAt: make(map[string]int)}
	data := pageData{
		From: t.first.UnixMilli(), To: max(t.last.UnixMilli(), t.first.UnixMilli()+1), Events: t.many, Notes: t.notes(),
		Redis: clean(strings.Join(t.headings[0].Redis, ", ")), Pattern: clean(t.headings[0].Prefix + t.headings[0].Pattern),
		Clients: [][2]string{}, Tags: []string{}, Locks: []pageLock{}, Marks: []pageMark{},
	}
	for _, l := range names {
		lock := pageLock{Name: printable(l.name), Kind: clean(l.kind), Unlocks: l.unlocks, Lanes: [][2]int{}}
		for _, of := range l.lanes() {
			before, waits := t.first, 0
			if of.waits {
				waits = 1
			}
			for _, s := range of.stints {
				s.from = laterOf(s.from, before)
				p.stint(s, before)
				before = s.from
			}
			lock.Lanes = append(lock.Lanes, [2]int{waits, len(of.stints)})
		}
		data.Locks = append(data.Locks, lock)
	}
	for _, c := range p.clients {
		data.Clients = append(data.Clients, [2]string{clean(c.id), clean(c.label)})
	}
	for _, tag := range p.tags {
		data.Tags = append(data.Tags, clean(tag))
	}
	for _, m := range t.marks {
		data.Marks = append(data.Marks, pageMark{m.from.Sub(t.first).Milliseconds(), m.to.Sub(t.first).Milliseconds(), m.what})
	}
	text, err := json.Marshal(data) // which writes no <, > and &
	if err != nil {
		return err
	}
	for part := range strings.SplitAfterSeq(pageHTML, "-->") {
		before, name, found := strings.Cut(strings.TrimSuffix(part, "-->"), "<!--")
		if _, err := io.WriteString(w, before); err != nil {
			return err
		}
		if !found {
			continue
		}
		switch name {
		case "css":
			_, err = io.WriteString(w, pageCSS)
		case "js":
			_, err = io.WriteString(w, pageJS)
		case "data":
			_, err = w.Write(text)
		case "stints":
			e := base64.NewEncoder(base64.StdEncoding, w)
			_, _ = e.Write(p.bytes) // Close reports it
			err = e.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// notes says what a reader of the page must know about the recording.
func (t *timeline) notes() []string {
	notes := []string{}
	for _, h := range t.headings[:1] {
		every := time.Duration(h.Every) * time.Millisecond
		notes = append(notes, fmt.Sprintf("Looked at each lock every %s and after messages, with at most %d commands a second: shorter holds may be missing.", every, h.Rate))
	}
	if t.beyond > 0 {
		notes = append(notes, fmt.Sprintf("%d locks are missing: rlock record -limit.", t.beyond))
	}
	if t.damaged > 0 {
		notes = append(notes, fmt.Sprintf("%d lines of the recording are damaged, and missing here.", t.damaged))
	}
	return notes
}
