package faults

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// histExplain shows where the checker got stuck. For each name with a rejected history, it prints the end of the
// longest order found, the state there, and the operations of which none can come next.
func histExplain(model porcupine.Model, history []porcupine.Operation) string {
	var text strings.Builder
	for i, part := range model.Partition(history) {
		verdict, info := porcupine.CheckOperationsVerbose(model, part, time.Minute)
		if verdict == porcupine.Ok {
			continue
		}
		var longest []porcupine.Operation
		for _, try := range info.PartialLinearizationsOperations()[0] {
			if len(try) > len(longest) {
				longest = try
			}
		}
		began := slices.MinFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) }).Call
		line := func(op porcupine.Operation) {
			fmt.Fprintf(&text, "    %11.3f to %11.3f ms: worker %d: %s\n",
				float64(op.Call-began)/1e6, float64(op.Return-began)/1e6, op.ClientId, model.DescribeOperation(op.Input, nil))
		}
		fmt.Fprintf(&text, "%d: %v after %d of %d\n", i, verdict, len(longest), len(part))
		state := model.Init()
		done := make(map[any]int)
		for i, op := range longest {
			_, state = model.Step(state, op.Input, nil)
			done[op.Input]++
			if i >= len(longest)-10 {
				line(op)
			}
		}
		fmt.Fprintf(&text, "  state %s; then none of\n", model.DescribeState(state))
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		shown := 0
		for _, op := range part {
			if done[op.Input]--; done[op.Input] < 0 && shown < 12 {
				shown++
				line(op)
			}
		}
	}
	return text.String()
}
