package redistest

import (
	"slices"
	"strconv"
	"strings"
)

// view is a line of CLUSTER NODES: how a cluster node sees another node, or itself.
type view struct {
	addr  string
	flags []string
	spans [][2]int // the slots served, first and last
}

// views returns the node's view of the cluster, or nil if it does not answer.
func (a *admin) views() []view { return parseViews(a.ask("CLUSTER", "NODES")) }

// parseViews parses a CLUSTER NODES reply.
func parseViews(nodes string) []view {
	var all []view
	for line := range strings.Lines(nodes) {
		// id host:port@bus flags master ping-sent pong-recv epoch link [slot|first-last]...
		words := strings.Fields(line)
		if len(words) < 8 {
			continue
		}
		addr, _, _ := strings.Cut(words[1], "@")
		v := view{addr: addr, flags: strings.Split(words[2], ",")}
		for _, w := range words[8:] {
			first, last, isRange := strings.Cut(w, "-")
			if !isRange {
				last = first
			}
			lo, err1 := strconv.Atoi(first)
			hi, err2 := strconv.Atoi(last)
			if err1 == nil && err2 == nil { // not a slot under migration: [12->-id]
				v.spans = append(v.spans, [2]int{lo, hi})
			}
		}
		all = append(all, v)
	}
	return all
}

// settled drops nodes that have only just met.
func settled(views []view) []view {
	var known []view
	for _, v := range views {
		if !v.has("handshake") {
			known = append(known, v)
		}
	}
	return known
}

func (v view) myself() bool  { return v.has("myself") }
func (v view) replica() bool { return v.has("slave") }

func (v view) has(flag string) bool { return slices.Contains(v.flags, flag) }

func (v view) served() int {
	n := 0
	for _, s := range v.spans {
		n += s[1] - s[0] + 1
	}
	return n
}

func (v view) serves(slot uint16) bool {
	for _, s := range v.spans {
		if s[0] <= int(slot) && int(slot) <= s[1] {
			return true
		}
	}
	return false
}
