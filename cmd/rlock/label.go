package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
)

// labels returns the labels of Clients by id, without those that have none. Labels found once are not read again.
func (v *viewer) labels(ctx context.Context, ids map[string]bool) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	found := make(map[string]string)
	var asked []string
	var gets rueidis.Commands
	for id := range ids {
		if label, ok := v.known[id]; ok {
			found[id] = label
			continue
		}
		asked = append(asked, id)
		gets = append(gets, v.rdb.B().Get().Key(kinds.LabelKey(id)).Build())
	}
	if len(gets) == 0 {
		return found
	}
	for i, reply := range v.rdb.DoMulti(ctx, gets...) {
		if label, err := reply.ToString(); err == nil && kinds.IsLabel(label) { // users without the right to read labels get none
			v.known[asked[i]], found[asked[i]] = label, label
		}
	}
	return found
}

// saysLabel reports whether an owner is marked as one with a label.
func saysLabel(owner string) bool {
	mark, _, _ := kinds.CapabilityOf(owner)
	return mark.Wants(kinds.Labelled)
}

// mayHaveLabel reports whether an owner's Client may have a label. The owners of tickets and of WithMinHold are not marked.
func mayHaveLabel(owner string) bool {
	return saysLabel(owner) || kinds.IsTicket(owner) || kinds.IsPlaceholder(owner)
}

// isOurs reports whether an owner is certainly of this library: Redisson's tags are shorter than marked ones, and do not begin with 0.
func isOurs(owner string) bool {
	mark, _, _ := kinds.CapabilityOf(owner)
	_, tag, _ := strings.Cut(owner, ":")
	return mark != 0 || len(tag) > 1 && tag[0] == '0'
}

// addLabels adds the labels of the locks' holders.
func (v *viewer) addLabels(ctx context.Context, locks ...*state) {
	ids := make(map[string]bool)
	for _, s := range locks {
		for i := range s.Holders {
			if owner := s.Holders[i].Owner; mayHaveLabel(owner) {
				ids[clientID(owner)] = true
			}
		}
	}
	labels := v.labels(ctx, ids)
	for _, s := range locks {
		for i := range s.Holders {
			s.Holders[i].Label = labels[clientID(s.Holders[i].Owner)]
		}
	}
}

// addLabelsOfWaiters adds the labels of waiters, and of permits.
func (v *viewer) addLabelsOfWaiters(ctx context.Context, seen *view) {
	ids := make(map[string]bool)
	for _, queue := range [][]string{seen.Queue, seen.FairQueue, seen.Writers} {
		for _, owner := range queue[:min(len(queue), mostLines)] {
			if seen.isSemaphore() || mayHaveLabel(owner) { // its queue has Clients
				ids[clientID(owner)] = true
			}
		}
	}
	for i := range seen.Permits {
		if p := &seen.Permits[i]; p.Client != "" { // only Redisson's have none
			ids[p.Client] = true
		}
	}
	labels := v.labels(ctx, ids)
	for i := range seen.Permits {
		seen.Permits[i].Label = labels[seen.Permits[i].Client]
	}
	if len(labels) > 0 {
		seen.Labels = labels
	}
}

// labelled returns an owner, or a Client's id, behind its label.
func labelled(label, owner string) string {
	if label == "" {
		return owner
	}
	return fmt.Sprintf("%q (%s)", label, owner)
}

// labelledAll returns owners behind their labels.
func labelledAll(owners []string, labels map[string]string) []string {
	all := make([]string, len(owners))
	for i, owner := range owners {
		all[i] = labelled(labels[clientID(owner)], owner)
	}
	return all
}

// noteUnlabelled notes for each holder without a label why it has none.
func (s *state) noteUnlabelled() {
	for i := range s.Holders {
		switch h := &s.Holders[i]; {
		case h.Label != "":
		case h.note == anotherLibrary:
		case saysLabel(h.Owner):
			h.note = "label not found"
		case isOurs(h.Owner) || h.Host != "":
			h.note = "no label"
		default:
			h.note = "Redisson, or no label"
		}
	}
}

// noteUnlabelledBeside does so for all locks of a table, if any of them has a label.
func noteUnlabelledBeside(locks []*state) {
	some := false
	for _, s := range locks {
		for i := range s.Holders {
			some = some || s.Holders[i].Label != ""
		}
	}
	if !some {
		return
	}
	for _, s := range locks {
		s.noteUnlabelled()
	}
}
