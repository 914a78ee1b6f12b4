// Package files serves the files of a box: reading, writing, listing, renaming and removing. It resolves relative paths
// and limits sizes; the [Host] resolves links, inside the box.
package files

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"boxgate/api"
	"boxgate/api/capture"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/stream"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host opens the files of boxes.
type Host interface {
	// OpenFiles returns the files of a box, after starting it if necessary, with the permissions of a command of a user, which is a valid
	// one (boxgate/api/spec.User); empty: the box's ordinary user. The box keeps running until Close is called. ctx bounds all calls.
	// [api.ErrNotSupported]: the host cannot reach the files, or not as this user.
	OpenFiles(ctx context.Context, id policy.BoxID, user string) (Files, error)
}

// Files are the files of one box, with the permissions of one user. Paths are absolute. Calls must not overlap: read the
// content returned by a call to its end before the next call. After an error that does not concern a file, call Close.
type Files interface {
	Stat(path string, follow bool) (Info, error)
	// List returns at most that many entries, and whether there are more.
	List(path string, most int) ([]Info, bool, error)
	// Read returns up to length bytes, starting at offset.
	Read(path string, offset, length int64) (Info, io.Reader, error)
	// Write creates a file, or replaces its content and keeps its permissions and owner.
	Write(path string, o WriteOptions, content io.Reader) error
	MakeDir(path string, parents bool) error
	Rename(from, to string) error
	Remove(path string, recursive bool) error
	// SetAttributes removes and sets extended attributes of a file or directory; see [Info]. It follows links, and stops at the first
	// failure.
	SetAttributes(path string, set map[string]string, remove []string) error
	// Pack returns a directory as a tar archive. After the archive was read, skipped returns the number of unreadable
	// files.
	Pack(path string) (archive io.Reader, skipped func() (int, error), err error)
	// Unpack extracts a tar archive into a directory.
	Unpack(path string, archive io.Reader) error
	Close()
}

// WriteOptions are the options of [Files.Write].
type WriteOptions struct {
	Own bool // a file of another owner becomes the user's, which only root is permitted
}

// Info describes a file. In a list, a link has the Size and IsDir of its target.
type Info struct {
	Name  []byte
	Type  string // file, directory, symlink or other
	IsDir bool
	Size  int64
	Mode  uint32 // permissions
	Time  int64  // last modification, in ns since 1970
	Inode uint64
	UID   uint32 // of the owner, in the box
	GID   uint32
	Owner string // name of the owner in the box's own /etc/passwd, otherwise its ID; at most 32 bytes
	Group string
	// Target is where a symbolic link leads, as it is written in the link. In a long list it may be missing.
	Target []byte
	// Attributes are the user-defined extended attributes, see xattr(7), by their names without the prefix "user.". At most 64 with 16 KiB
	// are returned of a file, and in a long list none. Their names and values are UTF-8.
	Attributes map[string]string
}

// Permissions returns the type and the permissions of a file in the form of ls, such as drwxr-xr-x. Other files than directories and
// symbolic links begin with -.
func (i Info) Permissions() string {
	kind := map[string]string{"directory": "d", "symlink": "l"}[i.Type]
	return cmp.Or(kind, "-") + fs.FileMode(i.Mode & 0o777).String()[1:]
}

// Endpoints serves the files of boxes.
type Endpoints struct {
	Boxes  rest.Finder
	Host   Host
	Bodies strict.Bodies
	// MaxRead is the maximum number of bytes of a file in a response of read.
	MaxRead int64
	// Output bounds the memory of all responses of read and list together.
	Output *capture.Budget
	// Watcher serves watches. nil: they are refused.
	Watcher  Watcher
	Stopping <-chan struct{} // closed when the server shuts down, which ends watches
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/files/read", ID: "readFile", Summary: "Read a file, or a range of it; for larger files use files/download",
			Query: reflect.TypeFor[readQuery](), Response: reflect.TypeFor[readView](), Handle: e.read},
		{Method: "POST", Path: "/v2/box/{id}/files/write", ID: "writeFile", Summary: "Create a file or replace its content; missing directories are created",
			Request: reflect.TypeFor[writeBody](), Example: `{"path":"src/main.py","content":"print('hello')\n"}`, Response: reflect.TypeFor[pathView](), Handle: e.write},
		{Method: "GET", Path: "/v2/box/{id}/files/list", ID: "listFiles", Summary: "List a directory, ordered by name", Query: reflect.TypeFor[folderQuery](), Response: reflect.TypeFor[listView](), Handle: e.list},
		{Method: "GET", Path: "/v2/box/{id}/files/stat", ID: "statFile", Summary: "Describe a file, a directory or a symbolic link", Query: reflect.TypeFor[statQuery](), Response: reflect.TypeFor[statView](), Handle: e.stat},
		{Method: "POST", Path: "/v2/box/{id}/files/mkdir", ID: "makeDirectory", Summary: "Create a directory", Request: reflect.TypeFor[mkdirBody](), Example: `{"path":"src/lib","parents":true}`, Response: reflect.TypeFor[pathView](), Handle: e.mkdir},
		{Method: "POST", Path: "/v2/box/{id}/files/rename", ID: "renameFile", Summary: "Rename or move a file or directory; a file at the new path is replaced", Request: reflect.TypeFor[renameBody](), Example: `{"from":"a.txt","to":"b.txt"}`, Response: reflect.TypeFor[pathView](), Handle: e.rename},
		{Method: "POST", Path: "/v2/box/{id}/files/remove", ID: "removeFile", Summary: "Remove a file or directory", Request: reflect.TypeFor[removeBody](), Example: `{"path":"src/lib","recursive":true}`, Response: reflect.TypeFor[pathView](), Handle: e.remove},
		{Method: "POST", Path: "/v2/box/{id}/files/attributes", ID: "setFileAttributes", Summary: "Set or remove extended attributes of a file", Request: reflect.TypeFor[attributesBody](), Example: `{"path":"src/main.py","set":{"origin":"import"},"remove":["draft"]}`, Response: reflect.TypeFor[pathView](), Handle: e.setAttributes},
		{Method: "POST", Path: "/v2/box/{id}/files/upload", ID: "uploadFiles", Summary: "Write files of any size: for each file a part paths, followed by a part files",
			Query: reflect.TypeFor[uploadQuery](), Consumes: "multipart/form-data", Request: reflect.TypeFor[uploadForm](), Response: reflect.TypeFor[uploadView](), Handle: e.upload},
		{Method: "GET", Path: "/v2/box/{id}/files/download", ID: "downloadFile", Summary: "The bytes of a file, or a directory as a tar archive",
			Query: reflect.TypeFor[folderQuery](), Produces: []string{"application/octet-stream", tarMedia}, Handle: e.download},
		{Method: "POST", Path: "/v2/box/{id}/files/unpack", ID: "unpackFiles", Summary: "Extract a tar archive into a directory",
			Query: reflect.TypeFor[folderQuery](), Consumes: tarMedia, Response: reflect.TypeFor[pathView](), Handle: e.unpack},
		{Method: "GET", Path: "/v2/box/{id}/files/watch", ID: "watchFiles", Summary: "The changes in a directory as they happen, until the client leaves",
			Query: reflect.TypeFor[watchQuery](), Produces: []string{stream.NDJSON}, Items: []reflect.Type{reflect.TypeFor[watchEventView](), reflect.TypeFor[watchEndView]()}, Handle: e.watch},
	}
}

const (
	// maxEntries is the maximum number of directory entries in a response.
	maxEntries = 20_000
	// fewEntries is the number of entries read before reserving memory for more.
	fewEntries = 500
	// listCost is the memory reserved while reading up to maxEntries entries: their names alone take up to 4 MiB.
	listCost = 8 << 20
	// maxList bounds the response, in bytes.
	maxList = 16 << 20
	// entryCost is the size of an entry in a response without its name and path.
	entryCost = 128
)

// pathView is the response of calls that create or change a file.
type pathView struct {
	Path string `json:"path" doc:"absolute" example:"/workspace/home/src/main.py"`
}

// with runs f with the files of the box in the path of the request, as a user.
func (e *Endpoints) with(r *http.Request, user string, f func(Files) (rest.Reply, error)) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.open(r.Context(), box.ID, user, f)
}

func (e *Endpoints) open(ctx context.Context, box policy.BoxID, user string, f func(Files) (rest.Reply, error)) (rest.Reply, error) {
	files, err := e.Host.OpenFiles(ctx, box, user)
	if err != nil {
		return rest.Reply{}, err
	}
	defer files.Close()
	return f(files)
}

// withAnswer is with for responses that contain files or directories.
func (e *Endpoints) withAnswer(r *http.Request, user string, f func(Files, *capture.Answer) (rest.Reply, error)) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	answer, err := e.Output.Open(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.open(r.Context(), box.ID, user, func(files Files) (rest.Reply, error) { return f(files, answer) })
}

// change runs a call that responds with a path.
func (e *Endpoints) change(r *http.Request, user, path string, f func(Files) error) (rest.Reply, error) {
	return e.with(r, user, func(files Files) (rest.Reply, error) {
		return rest.Reply{Body: pathView{displayPath(path)}}, f(files)
	})
}

// decodePath parses a body and returns the path in one of its fields, for the user in another one.
func (e *Endpoints) decodePath(w http.ResponseWriter, r *http.Request, body any, user, path *string) (string, error) {
	if err := e.Bodies.Decode(w, r, body); err != nil {
		return "", err
	}
	return e.resolve(r, *user, "path", *path, false)
}

type readQuery struct {
	Path     string `json:"path" doc:"absolute, or below the home directory" example:"src/main.py"`
	Encoding string `json:"encoding,omitempty" doc:"absent: text; bytes that are not UTF-8 become U+FFFD" enum:"base64"`
	Offset   int64  `json:"offset,omitempty" doc:"first byte to read" min:"0"`
	Length   *int64 `json:"length,omitempty" doc:"maximum number of bytes to read; absent: to the end of the file" min:"0" example:"4096"`
	User     string `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
}

type readView struct {
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty" enum:"base64"`
	Size     int64  `json:"size" doc:"size of the whole file in bytes"`
}

func (e *Endpoints) read(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var q readQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	path, err := e.resolve(r, q.User, "path", q.Path, false)
	if err != nil {
		return rest.Reply{}, err
	}
	if q.Encoding != "" && q.Encoding != "base64" {
		return rest.Reply{}, problem.Invalid("/encoding", `must be "base64", or absent for text`)
	}
	length := e.MaxRead + 1
	if q.Length != nil {
		if length = *q.Length; length > e.MaxRead {
			return rest.Reply{}, problem.Invalid("/length", "is larger than %d, the most that one call reads", e.MaxRead)
		}
	}
	return e.withAnswer(r, q.User, func(files Files, answer *capture.Answer) (rest.Reply, error) {
		info, content, err := files.Read(path, q.Offset, length)
		if err != nil {
			return rest.Reply{}, err
		}
		if q.Length == nil && info.Size-q.Offset > e.MaxRead {
			return rest.Reply{}, tooLarge(info.Size, e.MaxRead)
		}
		data, err := answer.ReadAll(content, max(0, min(length, info.Size-q.Offset)))
		if err != nil {
			return rest.Reply{}, err
		}
		if int64(len(data)) > e.MaxRead { // the file grew in the meantime
			return rest.Reply{}, tooLarge(int64(len(data)), e.MaxRead)
		}
		view := readAnswer(data, q.Encoding, info.Size)
		if cost := capture.Cost(view.Content); cost > e.Output.Most() {
			return rest.Reply{}, problem.Refuse(http.StatusRequestEntityTooLarge, "with its control characters escaped the content has %d bytes; read it with encoding=base64, or in ranges", cost)
		} else if !answer.Reserve(max(0, cost-len(data))) {
			return rest.Reply{}, capture.ErrFull
		}
		return rest.Reply{Body: view}, nil
	})
}

func tooLarge(size, most int64) error {
	return problem.Refuse(http.StatusRequestEntityTooLarge,
		"the file has %d bytes; one call reads at most %d: read ranges with offset and length, or get it from files/download", size, most)
}

func readAnswer(data []byte, encoding string, size int64) readView {
	if encoding == "base64" {
		return readView{base64.StdEncoding.EncodeToString(data), encoding, size}
	}
	return readView{Content: strings.ToValidUTF8(string(data), "\uFFFD"), Size: size}
}

type writeBody struct {
	Path     string `json:"path" doc:"absolute, or below the home directory" example:"src/main.py"`
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty" doc:"encoding of content; absent: text" enum:"base64"`
	User     string `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
}

func (e *Endpoints) write(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body writeBody
	path, err := e.decodePath(w, r, &body, &body.User, &body.Path)
	if err != nil {
		return rest.Reply{}, err
	}
	var content io.Reader = strings.NewReader(body.Content)
	switch body.Encoding {
	case "":
	case "base64":
		data, err := base64.StdEncoding.DecodeString(body.Content)
		if err != nil {
			return rest.Reply{}, problem.Invalid("/content", "is not base64 (RFC 4648, section 4)")
		}
		content = strings.NewReader(string(data))
	default:
		return rest.Reply{}, problem.Invalid("/encoding", `must be "base64", or absent for text`)
	}
	return e.change(r, body.User, path, func(files Files) error { return files.Write(path, WriteOptions{}, content) })
}

type folderQuery struct {
	Folder string `json:"folder,omitempty" doc:"absolute, or below the home directory; absent: the home directory" example:"src"`
	User   string `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
}

// folder parses the query of a call for a folder, and returns its absolute path and the user.
func (e *Endpoints) folder(r *http.Request) (path, user string, err error) {
	var q folderQuery
	if err := rest.Query(r, &q); err != nil {
		return "", "", err
	}
	path, err = e.resolve(r, q.User, "folder", q.Folder, true)
	return path, q.User, err
}

type listView struct {
	Files     []entryView `json:"files"`
	Truncated bool        `json:"truncated,omitempty" doc:"the directory has more entries than fit into the response"`
}

type entryView struct {
	Name    string `json:"name" doc:"bytes that are not UTF-8 are shown as U+FFFD" example:"main.py"`
	Path    string `json:"path" example:"/workspace/home/src/main.py"`
	Size    int64  `json:"size" doc:"in bytes; for a symbolic link, the size of its target; 0 for a directory"`
	IsDir   bool   `json:"is_dir" doc:"a directory, or a symbolic link to one"`
	ModTime string `json:"mod_time" format:"date-time"`
	Type    string `json:"type" enum:"file directory symlink other"`
}

func (e *Endpoints) list(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	dir, user, err := e.folder(r)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.withAnswer(r, user, func(files Files, answer *capture.Answer) (rest.Reply, error) {
		infos, more, err := files.List(dir, fewEntries)
		if err == nil && more {
			if !answer.Reserve(listCost) {
				return rest.Reply{}, capture.ErrFull
			}
			infos, more, err = files.List(dir, maxEntries)
		}
		if err != nil {
			return rest.Reply{}, err
		}
		view, cost := viewList(dir, infos)
		view.Truncated = view.Truncated || more
		if !answer.Reserve(cost) {
			return rest.Reply{}, capture.ErrFull
		}
		return rest.Reply{Body: view}, nil
	})
}

// viewList returns as many entries of a directory as fit into a response, and the size of the response.
func viewList(dir string, infos []Info) (view listView, cost int) {
	view.Files = make([]entryView, 0, len(infos))
	for _, info := range infos {
		entry := entryView{
			Name: strings.ToValidUTF8(string(info.Name), "\uFFFD"), Path: displayPath(dir + "/" + string(info.Name)),
			Size: info.Size, IsDir: info.IsDir, ModTime: modTime(info), Type: info.Type,
		}
		if info.IsDir {
			entry.Size = 0
		}
		if cost += entryCost + capture.Cost(entry.Name) + capture.Cost(entry.Path); cost > maxList {
			view.Truncated = true
			break
		}
		view.Files = append(view.Files, entry)
	}
	return view, cost
}

func modTime(info Info) string { return time.Unix(0, info.Time).UTC().Format(time.RFC3339) }

type statQuery struct {
	Path   string `json:"path" doc:"absolute, or below the home directory" example:"src/main.py"`
	Follow bool   `json:"follow,omitempty" doc:"describe the target of a symbolic link"`
	User   string `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
}

type statView struct {
	Type    string `json:"type" enum:"file directory symlink other"`
	Size    int64  `json:"size"`
	ModTime string `json:"mod_time" format:"date-time"`
	Inode   uint64 `json:"inode"`
	Version string `json:"version" doc:"changes whenever the content changes" example:"42-1787140619000000000-12"`
	Mode    string `json:"mode" doc:"permissions, octal" example:"0644"`
	ownerView
}

// ownerView describes the permissions of a file in words.
type ownerView struct {
	Permissions string `json:"permissions" doc:"type and permissions in the form of ls" example:"-rw-r--r--"`
	Owner       string `json:"owner" doc:"its name in the box, otherwise its ID" example:"boxuser"`
	Group       string `json:"group" doc:"its name in the box, otherwise its ID" example:"boxuser"`
	UID         uint32 `json:"uid" doc:"of the owner, in the box" example:"1000"`
	GID         uint32 `json:"gid" doc:"of the group, in the box" example:"1000"`
	Target      string `json:"symlink_target,omitempty" doc:"of a symbolic link; bytes that are not UTF-8 are shown as U+FFFD"`

	Attributes map[string]string `json:"attributes,omitempty" doc:"extended attributes that users defined, without the prefix user. of their names; at most 64 with 16 KiB"`
}

func viewOwner(info Info) ownerView {
	return ownerView{
		Permissions: info.Permissions(), Owner: info.Owner, Group: info.Group, UID: info.UID, GID: info.GID,
		Target: strings.ToValidUTF8(string(info.Target), "\uFFFD"), Attributes: info.Attributes,
	}
}

func (e *Endpoints) stat(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var q statQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	path, err := e.resolve(r, q.User, "path", q.Path, false)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.with(r, q.User, func(files Files) (rest.Reply, error) {
		info, err := files.Stat(path, q.Follow)
		if err != nil {
			return rest.Reply{}, err
		}
		return rest.Reply{Body: statView{
			Type: info.Type, Size: info.Size, ModTime: modTime(info), Inode: info.Inode,
			Version: fmt.Sprintf("%d-%d-%d", info.Inode, info.Time, info.Size), Mode: octal(info),
			ownerView: viewOwner(info),
		}}, nil
	})
}

func octal(info Info) string { return fmt.Sprintf("%04o", info.Mode) }

type mkdirBody struct {
	Path    string `json:"path" example:"src/lib"`
	Parents bool   `json:"parents,omitempty" doc:"create missing parents; an existing directory is not an error"`
	User    string `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
}

func (e *Endpoints) mkdir(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body mkdirBody
	path, err := e.decodePath(w, r, &body, &body.User, &body.Path)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.change(r, body.User, path, func(files Files) error { return files.MakeDir(path, body.Parents) })
}

type renameBody struct {
	From string `json:"from" example:"a.txt"`
	To   string `json:"to" example:"b.txt"`
	User string `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
}

func (e *Endpoints) rename(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body renameBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	from, err := e.resolve(r, body.User, "from", body.From, false)
	if err != nil {
		return rest.Reply{}, err
	}
	to, err := e.resolve(r, body.User, "to", body.To, false)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.change(r, body.User, to, func(files Files) error { return files.Rename(from, to) })
}

type removeBody struct {
	Path      string `json:"path" example:"src/lib"`
	Recursive bool   `json:"recursive,omitempty" doc:"remove a directory with its contents; otherwise only an empty one"`
	User      string `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
}

func (e *Endpoints) remove(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body removeBody
	path, err := e.decodePath(w, r, &body, &body.User, &body.Path)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.change(r, body.User, path, func(files Files) error { return files.Remove(path, body.Recursive) })
}

// maxPath is the longest path that the kernel accepts.
const maxPath = 4095

// resolve makes a path of the box in the path of a request absolute, for a user that it checks; see [resolve].
func (e *Endpoints) resolve(r *http.Request, user, name, text string, empty bool) (string, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return "", err
	}
	home, err := homeOf(box, user)
	if err != nil {
		return "", err
	}
	return resolve(home, name, text, empty)
}

// homeOf returns the home directory of a user of a box, where relative paths begin. It refuses users that no command may run as.
func homeOf(box api.Box, user string) (string, error) {
	var p problem.List
	if spec.User(&p, "/user", box.UserName(), user); p.Err() != nil {
		return "", p.Err()
	}
	if user == "root" {
		return "/root", nil
	}
	return box.HomeDir(), nil
}

// resolve makes a path absolute, from the home directory of the user. It leaves ".." to the box, because the part before it may be
// a link. If empty is set, an empty path stands for the home directory.
func resolve(home, name, text string, empty bool) (string, error) {
	switch {
	case text == "" && empty:
		return home, nil
	case text == "":
		return "", problem.Invalid("/"+name, "is missing: name a file of the box, absolute or below %s", home)
	case strings.ContainsRune(text, 0):
		return "", problem.Invalid("/"+name, "must not contain NUL")
	}
	if !strings.HasPrefix(text, "/") {
		text = home + "/" + text
	}
	if len(text) > maxPath {
		return "", problem.Invalid("/"+name, "has %d bytes; the limit is %d", len(text), maxPath)
	}
	return text, nil
}

// displayPath formats a path for a response.
func displayPath(text string) string {
	return strings.ToValidUTF8(path.Clean(text), string(utf8.RuneError))
}
