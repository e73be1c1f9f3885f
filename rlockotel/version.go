package rlockotel

import "runtime/debug"

// version returns the instrumentation scope's version, otel_scope_version in Prometheus: this module's version in the program's build, ""
// without module information.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return versionIn(info)
}

func versionIn(info *debug.BuildInfo) string {
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != scope {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return m.Version
	}
	return ""
}
