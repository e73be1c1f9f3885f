//go:build race

package older

// raceFlags make go build programs in the mode of this test.
func raceFlags() []string { return []string{"-race"} }
