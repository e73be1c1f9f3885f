//go:build programs

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A real fish completes the same as bash.
func TestCompletionInFish(t *testing.T) {
	dir := completionDir(t)
	for line, want := range completionCases {
		out := shellWith(t, dir, "fish", "--no-config", "-c", "rlock completion fish | source; complete -C "+quoteForFish(line))
		var got []string
		for found := range strings.Lines(out) {
			word, _, _ := strings.Cut(strings.TrimSuffix(found, "\n"), "\t")
			got = append(got, word)
		}
		slices.Sort(got)
		require.Equal(t, want, slices.Compact(got), line)
	}
}

// zshrc makes Ctrl-T write the line to the file found, and clear it.
const zshrc = `autoload -U compinit && compinit -u -D && source <(rlock completion zsh)
found() { print -r -- "$BUFFER" >found; BUFFER=; }
zle -N found
bindkey '^T' found
PS1=
`

// A real zsh at a terminal completes the same with the Tab key: it inserts the only word, and lists several.
func TestCompletionInZsh(t *testing.T) {
	dir := completionDir(t)
	path, err := exec.LookPath("zsh")
	require.NoError(t, err, "install zsh: make programs does it")
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".zshrc"), []byte(zshrc), 0o600))
	cmd := exec.CommandContext(t.Context(), path, "--no-globalrcs", "-i")
	cmd.Dir = dir
	x := terminalOf(t, cmd, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"), "HOME="+dir, "ZDOTDIR="+dir)
	x.press("echo rea''dy\n")
	x.saw("ready")
	number := 0
	for line, want := range completionCases {
		number++
		before := len(x.seen.String())
		x.press(line + "\t")
		if len(want) > 1 { // the first may insert what they have in common
			x.press("\t")
		}
		x.press("\x14")
		x.press(fmt.Sprintf("echo do''ne %d.\n", number))
		x.saw(fmt.Sprintf("done %d.", number))
		text, err := os.ReadFile(filepath.Join(dir, "found"))
		require.NoError(t, err)
		buffer := strings.TrimSuffix(string(text), "\n")
		switch at := strings.LastIndex(line, " ") + 1; len(want) {
		case 0:
			require.Equal(t, line, buffer)
		case 1:
			require.Equal(t, line[:at]+strings.ReplaceAll(want[0], " ", `\ `), strings.TrimSuffix(buffer, " "))
		default:
			for _, word := range want {
				require.Contains(t, x.seen.String()[before:], word, line)
			}
		}
	}
	x.press("exit\n")
	require.Zero(t, x.ends())
}
