package boxes

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/copying"
)

// filesAnswer is a directory as the API returns it.
type filesAnswer struct {
	Files []struct {
		Name    string `json:"name"`
		Type    string `json:"type"`
		Size    int64  `json:"size"`
		IsDir   bool   `json:"is_dir"`
		ModTime string `json:"mod_time"`
	} `json:"files"`
	Truncated bool `json:"truncated"`
}

// UserFlag adds the flag --user for the user who accesses files.
func UserFlag(cmd *cobra.Command, user *string) {
	cmd.Flags().StringVar(user, "user", "", "the box's user by its name, root, UID or UID:GID of the box (default: the box's user)")
}

// FilesPath returns the path of a call for files, with its query and a user; "" is the box's user.
func FilesPath(box, call, user string, query url.Values) string {
	if user != "" {
		query.Set("user", user)
	}
	if len(query) == 0 {
		return api.BoxPath(box, "files", call)
	}
	return api.BoxPath(box, "files", call) + "?" + query.Encode()
}

// asUser adds a user to the body of a call for files.
func asUser(user string, body map[string]any) map[string]any {
	if user != "" {
		body["user"] = user
	}
	return body
}

// newList is `gateway box ls`.
func newList(o *cli.Options, boxes func(cmd *cobra.Command, label string) error) *cobra.Command {
	var label, user string
	cmd := &cobra.Command{
		Use: "ls [BOX[:PATH]]", Short: "List a directory of a box, by default its home directory; without an argument, the boxes", Args: cli.MaxArgs(1),
		Example: "  gateway box ls demo\n  gateway box ls demo:/etc",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && user != "" {
				return cli.Usagef("--user is for the files of a box; name a box")
			}
			if len(args) == 0 {
				return boxes(cmd, label)
			}
			if label != "" {
				return cli.Usagef("--label is for boxes; leave out %s", args[0])
			}
			box, dir, _ := strings.Cut(args[0], ":")
			query := url.Values{}
			if dir != "" {
				query.Set("folder", dir)
			}
			return InBox(box, o.Call(cmd, "GET", FilesPath(box, "list", user, query), nil, cli.Decoded(func(w io.Writer, a filesAnswer) error {
				if a.Truncated {
					fmt.Fprintln(cmd.ErrOrStderr(), "warning: the directory has more entries than an answer can have")
				}
				return printFiles(w, a)
			})))
		},
	}
	cmd.Flags().StringVar(&label, "label", "", "without an argument: only boxes with this label")
	UserFlag(cmd, &user)
	return cmd
}

func printFiles(w io.Writer, a filesAnswer) error {
	rows := [][]string{{"TYPE", "SIZE", "MODIFIED", "NAME"}}
	for _, f := range a.Files {
		name := escape(f.Name, maxMessage)
		if f.IsDir {
			name += "/"
		}
		rows = append(rows, []string{f.Type, strconv.FormatInt(f.Size, 10), word(f.ModTime), name})
	}
	return cli.Table(w, rows...)
}

// newStat is `gateway box stat`.
func newStat(o *cli.Options) *cobra.Command {
	var follow bool
	var user string
	cmd := &cobra.Command{
		Use: "stat BOX:PATH", Short: "Describe a file, a directory or a symbolic link of a box", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			box, file, err := fileOf(args[0])
			if err != nil {
				return err
			}
			query := url.Values{"path": {file}}
			if follow {
				query.Set("follow", "true")
			}
			return InBox(box, o.Call(cmd, "GET", FilesPath(box, "stat", user, query), nil, cli.Decoded(printStat)))
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "L", false, "describe the target of a symbolic link")
	UserFlag(cmd, &user)
	return cmd
}

func printStat(w io.Writer, s struct {
	Type    string
	Size    int64
	Mode    string
	ModTime string `json:"mod_time"`
	Version string

	Permissions, Owner, Group string
	Target                    string `json:"symlink_target"`
	Attributes                map[string]string
}) error {
	rows := [][]string{
		{"type", s.Type}, {"size", strconv.FormatInt(s.Size, 10)}, {"mode", s.Mode}, {"permissions", word(s.Permissions)}, {"owner", word(s.Owner)}, {"group", word(s.Group)},
		{"modified", s.ModTime}, {"version", s.Version},
	}
	if s.Target != "" {
		rows = append(rows, []string{"target", escape(s.Target, maxMessage)})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Attributes)) {
		rows = append(rows, []string{"attribute", escape(name, maxWord) + "=" + escape(s.Attributes[name], maxMessage)})
	}
	return cli.Table(w, rows...)
}

// newAttributes is `gateway box attributes`.
func newAttributes(o *cli.Options) *cobra.Command {
	var unset []string
	var user string
	cmd := &cobra.Command{
		Use: "attributes BOX:PATH [NAME=VALUE...]", Short: "Set or remove extended attributes of a file of a box, which gateway box stat prints", Args: cli.MinArgs(1),
		Long: "Set or remove extended attributes of a file or directory of a box. Programs in the box see them with the prefix user. (getfattr -d);\n" +
			"gateway box stat prints them.",
		Example: "  gateway box attributes demo:report.csv origin=import\n  gateway box attributes demo:report.csv --unset origin",
		RunE: func(cmd *cobra.Command, args []string) error {
			box, file, err := fileOf(args[0])
			if err != nil {
				return err
			}
			set := map[string]string{}
			for _, arg := range args[1:] {
				name, value, ok := strings.Cut(arg, "=")
				if !ok || name == "" {
					return cli.Usagef("%q is not NAME=VALUE", arg)
				}
				set[name] = value
			}
			if len(set)+len(unset) == 0 {
				return cli.Usagef("name an attribute to set, or to remove with --unset; gateway box stat prints the attributes")
			}
			return InBox(box, o.Call(cmd, "POST", api.BoxPath(box, "files", "attributes"), asUser(user, map[string]any{"path": file, "set": set, "remove": unset}), cli.Silent))
		},
	}
	cmd.Flags().StringArrayVar(&unset, "unset", nil, "name of an attribute to remove; repeatable")
	UserFlag(cmd, &user)
	return cmd
}

// newCat is `gateway box cat`.
func newCat(o *cli.Options) *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use: "cat BOX:PATH", Short: "Print a file of a box", Args: cli.ExactArgs(1),
		Long: "Print a file of a box: byte for byte into a file or a pipe, and without control characters on a terminal. With --json, the content is\n" +
			"in base64. `gateway box cp` copies files of any size.",
		RunE: func(cmd *cobra.Command, args []string) error {
			box, file, err := fileOf(args[0])
			if err != nil {
				return err
			}
			if !o.JSON {
				return InBox(box, copyFile(cmd, o, box, file, user))
			}
			query := url.Values{"path": {file}, "encoding": {"base64"}}
			return InBox(box, o.Call(cmd, "GET", FilesPath(box, "read", user, query), nil, cli.Silent))
		},
	}
	UserFlag(cmd, &user)
	return cmd
}

// copyFile copies a file of a box to standard output, read by a user.
func copyFile(cmd *cobra.Command, o *cli.Options, box, file, user string) error {
	client, err := o.QuietClient()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		var read struct{ Content string }
		query := url.Values{"path": {file}, "encoding": {"base64"}}
		if err := client.Get(cmd.Context(), FilesPath(box, "read", user, query), &read); err != nil {
			return err
		}
		data, err := base64.StdEncoding.DecodeString(read.Content)
		if err == nil {
			_, err = io.WriteString(out, cli.Prose(string(data)))
		}
		return err
	}
	var stat struct{ Type string }
	if err := client.Get(cmd.Context(), FilesPath(box, "stat", user, url.Values{"path": {file}, "follow": {"true"}}), &stat); err != nil {
		return err
	}
	if stat.Type == "directory" {
		return cli.Usagef("%s is a directory; list it with `gateway box ls`, or copy it with `gateway box cp -r`", file)
	}
	resp, err := client.Stream(cmd.Context(), http.MethodGet, FilesPath(box, "download", user, url.Values{"folder": {file}}), "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(out, resp.Body)
	return err
}

// newWrite is `gateway box write`.
func newWrite(o *cli.Options) *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use: "write BOX:PATH", Short: "Write standard input to a file of a box; missing directories are created", Args: cli.ExactArgs(1),
		Example: "  echo hello | gateway box write demo:notes/hello.txt",
		RunE: func(cmd *cobra.Command, args []string) error {
			box, file, err := fileOf(args[0])
			if err != nil {
				return err
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			body := copying.Form(file, cmd.InOrStdin())
			defer body.Close()
			resp, err := client.Stream(cmd.Context(), http.MethodPost, FilesPath(box, "upload", user, url.Values{}), body.Media, body)
			if err != nil {
				return InBox(box, err)
			}
			if err := resp.Body.Close(); err != nil || !o.JSON {
				return err
			}
			return cli.WriteJSON(cmd.OutOrStdout(), map[string]any{"path": file, "bytes": body.Count()})
		},
	}
	UserFlag(cmd, &user)
	return cmd
}

// newMove is `gateway box mv`.
func newMove(o *cli.Options) *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use: "mv BOX:PATH BOX:PATH", Short: "Rename or move a file or directory within a box; a file at the new path is replaced", Args: cli.ExactArgs(2),
		Example: "  gateway box mv demo:a.txt demo:b.txt\n  gateway box mv demo:a.txt demo:old/",
		RunE: func(cmd *cobra.Command, args []string) error {
			box, from, err := fileOf(args[0])
			if err != nil {
				return err
			}
			other, to, err := fileOf(args[1])
			switch {
			case err != nil:
				return err
			case other != box:
				return cli.Usagef("both files must be in one box; between boxes: `gateway box cp` from one to here, then to the other")
			case strings.HasSuffix(to, "/"):
				to += path.Base(from)
			}
			return InBox(box, o.Call(cmd, "POST", api.BoxPath(box, "files", "rename"), asUser(user, map[string]any{"from": from, "to": to}), cli.Silent))
		},
	}
	UserFlag(cmd, &user)
	return cmd
}

// newMakeDir is `gateway box mkdir`.
func newMakeDir(o *cli.Options) *cobra.Command {
	var parents bool
	var user string
	cmd := &cobra.Command{
		Use: "mkdir BOX:PATH", Short: "Make a directory in a box", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			box, dir, err := fileOf(args[0])
			if err != nil {
				return err
			}
			return InBox(box, o.Call(cmd, "POST", api.BoxPath(box, "files", "mkdir"), asUser(user, map[string]any{"path": dir, "parents": parents}), cli.Silent))
		},
	}
	cmd.Flags().BoolVarP(&parents, "parents", "p", false, "make missing parents too; an existing directory is no error")
	UserFlag(cmd, &user)
	return cmd
}

// AreFiles reports whether the arguments of `gateway box rm` are files of boxes rather than boxes. A mixture, and a path without a box,
// are refused: `rm BOX PATH` must not remove the box.
func AreFiles(args []string) (bool, error) {
	files := 0
	for i, arg := range args {
		if strings.Contains(arg, ":") {
			files++
		} else if strings.Contains(arg, "/") {
			box := "BOX"
			if i > 0 && !strings.ContainsAny(args[0], "/:") {
				box = args[0]
			}
			return false, cli.Usagef("%q is no box, and nothing was removed; a file of a box is %s:%s", arg, box, arg)
		}
	}
	if files > 0 && files < len(args) {
		return false, cli.Usagef("give boxes or files (BOX:PATH), not both; nothing was removed")
	}
	return files > 0, nil
}

// RemoveFiles removes files of boxes as a user, for `gateway box rm BOX:PATH...`. It stops at the first failure.
func RemoveFiles(cmd *cobra.Command, o *cli.Options, args []string, recursive bool, user string) error {
	for _, arg := range args {
		if _, _, err := fileOf(arg); err != nil {
			return err
		}
	}
	for _, arg := range args {
		box, file, _ := Cut(arg)
		if path.Clean("/"+file) == "/" && strings.HasPrefix(file, "/") {
			return cli.Usagef("%s is the root directory of the box; remove the box with `gateway box rm %s`", arg, box)
		}
		body := asUser(user, map[string]any{"path": file, "recursive": recursive})
		if err := InBox(box, o.Call(cmd, "POST", api.BoxPath(box, "files", "remove"), body, cli.Silent)); err != nil {
			return err
		}
	}
	return nil
}

// InBox marks an error about a file of a box, which could otherwise be a local one.
func InBox(box string, err error) error {
	if refused, ok := asRefusal(err); ok && strings.HasPrefix(refused.Message, "/") && refused.Pointer == "" {
		return fmt.Errorf("in box %s: %w", box, err)
	}
	return err
}
