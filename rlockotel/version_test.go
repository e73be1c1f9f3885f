package rlockotel

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// The scope's version is this module's, wherever it is in a program's build.
func TestVersionOfTheScope(t *testing.T) {
	other := &debug.Module{Path: "github.com/go-rlock/rlock", Version: "v1.0.0"}
	for want, info := range map[string]debug.BuildInfo{
		"":            {Main: *other},
		"v1.2.3":      {Deps: []*debug.Module{other, {Path: scope, Version: "v1.2.3"}}},
		"v1.2.4-fork": {Deps: []*debug.Module{{Path: scope, Version: "v1.2.3", Replace: &debug.Module{Path: "fork", Version: "v1.2.4-fork"}}}},
		"(devel)":     {Main: debug.Module{Path: scope, Version: "(devel)"}, Deps: []*debug.Module{other}},
	} {
		require.Equal(t, want, versionIn(&info))
	}
}
