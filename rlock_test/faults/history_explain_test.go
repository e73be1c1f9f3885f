package faults

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// histExplain tells where the checker got stuck: the end of the longest order that it found for each
// lock whose history it rejects, the state there, and what nobody could put next.
func histExplain(model porcupine.Model, entries []histEntry) string {
	var text strings.Builder
	byName := make(map[string][]histEntry)
	for _, e := range entries {
		byName[e.Name] = append(byName[e.Name], e)
	}
	for name, part := range byName {
		verdict, info := porcupine.CheckOperationsVerbose(model, histOperations(part), time.Minute)
		if verdict == porcupine.Ok {
			continue
		}
		var longest []porcupine.Operation
		for _, try := range info.PartialLinearizationsOperations()[0] {
			if len(try) > len(longest) {
				longest = try
			}
		}
		began := slices.MinFunc(part, func(a, b histEntry) int { return int(a.Call - b.Call) }).Call
		line := func(e histEntry) {
			fmt.Fprintf(&text, "    %11.3f to %11.3f ms: worker %d: %v unsure=%v\n",
				float64(e.Call-began)/1e6, float64(e.Return-began)/1e6, e.Worker, e, e.Unsure)
		}
		fmt.Fprintf(&text, "%s: %v after %d of %d\n", name, verdict, len(longest), len(part))
		state := model.Init()
		done := make(map[histEntry]int)
		for i, op := range longest {
			e := op.Input.(histEntry)
			_, state = model.Step(state, e, nil)
			done[e]++
			if i >= len(longest)-10 {
				line(e)
			}
		}
		fmt.Fprintf(&text, "  state %+v; then none of\n", state)
		slices.SortFunc(part, func(a, b histEntry) int { return int(a.Call - b.Call) })
		shown := 0
		for _, e := range part {
			if done[e]--; done[e] < 0 && shown < 12 {
				shown++
				line(e)
			}
		}
	}
	return text.String()
}
