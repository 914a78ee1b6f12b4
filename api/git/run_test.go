package git

import (
	"context"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"boxgate/api"
	"boxgate/api/capture"
	"boxgate/policy"
)

// bare is a box without any programs. folder reports whether the requested folder exists.
type bare struct {
	folder bool
}

func (b *bare) Exec(_ context.Context, _ policy.BoxID, req api.ExecRequest, _, stderr io.Writer) (api.ExecResult, error) {
	switch {
	case req.Command[0] != "test":
		_, _ = io.WriteString(stderr, "no such file or directory\n")
		return api.ExecResult{ExitCode: notStarted}, nil
	case b.folder && req.Dir == "/" && req.Command[2] == "/src":
		return api.ExecResult{}, nil
	}
	return api.ExecResult{ExitCode: 1}, nil
}

// A missing folder is not reported as a missing git, nor the other way round.
func TestMissingFolderIsSaid(t *testing.T) {
	t.Parallel()
	for there, want := range map[bool]string{true: "the image of the box may lack it", false: `the box has no directory "/src"`} {
		answer, err := capture.New(1<<20).Open(t.Context(), "box1")
		if err != nil {
			t.Fatal(err)
		}
		g := repository{e: &Endpoints{Commands: &bare{folder: there}, MaxOutput: 1 << 10}, ctx: t.Context(), box: "box1", dir: "/src", answer: answer}
		if _, err := g.must("status"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("folder there %v: %v", there, err)
		}
	}
}

// The reason is at the beginning of some messages and at the end of others.
func TestFailureHasBothEnds(t *testing.T) {
	t.Parallel()
	text := "warning: Not a git repository.\n" + strings.Repeat("ü usage\n", 1000) + "the end"
	got := result{err: text, status: 129}.failure("git diff").Error()
	if !strings.Contains(got, "129: warning: Not a git repository.") || !strings.HasSuffix(got, "the end") || len(got) > 2100 || !utf8.ValidString(got) {
		t.Errorf("%d bytes: %.100s", len(got), got)
	}
	if short := (result{err: "fatal: no", status: 1}).failure("git push").Error(); short != "git push failed with exit code 1: fatal: no" {
		t.Error(short)
	}
}
