package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/copying"
)

// newBoxCopy is `gateway box cp`.
func newBoxCopy(o *cli.Options) *cobra.Command {
	var recursive bool
	cmd := &cobra.Command{
		Use:   "cp LOCAL BOX:PATH | BOX:PATH LOCAL",
		Short: "Copy a file into a box or out of one; with -r, a directory",
		Long: "Copy a file into a box or out of one; with -r, a directory.\n\n" +
			"PATH is absolute, or below /workspace/home. If the target is a directory, the file keeps its name. With -r, the contents of the\n" +
			"directory are copied into the target, which is created if necessary. Write a local name with a colon as ./NAME.",
		Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			c := boxCopy{cmd: cmd, client: client, recursive: recursive, json: o.JSON}
			fromBox, from, out := cutBox(args[0])
			toBox, to, in := cutBox(args[1])
			switch {
			case out && !in:
				return c.copyOut(fromBox, from, args[1])
			case in && !out:
				return c.copyIn(args[0], toBox, to)
			}
			return cli.Usagef("one of the two must be BOX:PATH, and the other a local path")
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy a directory with its contents")
	return cmd
}

// cutBox parses BOX:PATH. With a slash before the colon, the argument is a local name.
func cutBox(arg string) (box, file string, ok bool) {
	box, file, ok = strings.Cut(arg, ":")
	return box, file, ok && box != "" && !strings.Contains(box, "/")
}

// boxCopy is one run of cp.
type boxCopy struct {
	cmd             *cobra.Command
	client          *api.Client
	recursive, json bool
}

// copied is the output of --json.
type copied struct {
	Path    string `json:"path"`
	Bytes   int64  `json:"bytes"`
	Skipped int    `json:"skipped,omitempty"`
}

func (c *boxCopy) report(what copied) error {
	if c.json {
		return json.NewEncoder(c.cmd.OutOrStdout()).Encode(what)
	}
	return nil
}

// kind returns the type of a file in the box, or "" if it does not exist.
func (c *boxCopy) kind(box, file string) (string, error) {
	var stat struct{ Type string }
	query := url.Values{"path": {cmp.Or(file, ".")}, "follow": {"true"}}
	err := c.client.Get(c.cmd.Context(), api.BoxPath(box, "files", "stat")+"?"+query.Encode(), &stat)
	if refused, ok := errors.AsType[*api.ResponseError](err); ok && refused.Status == http.StatusNotFound {
		return "", nil
	}
	return stat.Type, err
}

// copyIn copies into a box.
func (c *boxCopy) copyIn(local, box, file string) error {
	fi, err := os.Stat(local)
	if err != nil {
		return cli.FileError(err)
	}
	if fi.IsDir() != c.recursive {
		return recursion(local, fi.IsDir())
	}
	if fi.IsDir() {
		return c.tree(local, box, file)
	}
	kind, err := c.kind(box, file)
	if err != nil {
		return err
	}
	if kind == "directory" || file == "" || strings.HasSuffix(file, "/") {
		file = path.Join(file, filepath.Base(local))
	}
	source, err := os.Open(local)
	if err != nil {
		return cli.FileError(err)
	}
	defer source.Close()
	body := copying.Form(file, source)
	defer body.Close()
	if err := c.send(box, "upload", body.Media, body); err != nil {
		return err
	}
	return c.report(copied{Path: file, Bytes: body.Count()})
}

// tree copies the contents of a local directory.
func (c *boxCopy) tree(local, box, folder string) error {
	body := copying.Pack(local)
	defer body.Close()
	query := url.Values{"folder": {folder}}
	if err := c.send(box, "unpack?"+query.Encode(), body.Media, body); err != nil {
		return err
	}
	return c.report(copied{Path: folder, Bytes: body.Count()})
}

func (c *boxCopy) send(box, call, media string, body io.Reader) error {
	resp, err := c.client.Stream(c.cmd.Context(), http.MethodPost, api.BoxPath(box, "files", call), media, body)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// copyOut copies out of a box.
func (c *boxCopy) copyOut(box, file, local string) error {
	kind, err := c.kind(box, file)
	if err == nil && (kind == "directory") != c.recursive && kind != "" {
		err = recursion(file, kind == "directory")
	}
	if err != nil {
		return err
	}
	query := url.Values{"folder": {file}}
	resp, err := c.client.Stream(c.cmd.Context(), http.MethodGet, api.BoxPath(box, "files", "download")+"?"+query.Encode(), "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if c.recursive {
		return c.unpack(resp, local)
	}
	if fi, err := os.Stat(local); err == nil && fi.IsDir() {
		local = filepath.Join(local, path.Base(file))
	}
	n, err := copying.Save(local, resp.Body)
	if err != nil {
		return cli.WriteError(local, err)
	}
	return c.report(copied{Path: local, Bytes: n})
}

// unpack extracts an archive sent by a box.
func (c *boxCopy) unpack(resp *http.Response, local string) error {
	n, err := copying.Unpack(local, resp.Body)
	if err != nil {
		return err
	}
	skipped, _ := strconv.Atoi(resp.Trailer.Get(api.SkippedTrailer))
	if err := c.report(copied{Path: local, Bytes: n, Skipped: skipped}); err != nil {
		return err
	}
	if skipped > 0 {
		return fmt.Errorf("not copied: %s of the box, which cannot be read or are neither files, directories nor symbolic links", cli.Count(skipped, "file", "files"))
	}
	return nil
}

func recursion(name string, isDir bool) error {
	if isDir {
		return cli.Usagef("%s is a directory; copy it with -r", name)
	}
	return cli.Usagef("%s is not a directory; copy it without -r", name)
}
