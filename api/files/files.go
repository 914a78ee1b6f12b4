package files

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"boxgate/api/problem"
	"boxgate/api/rest"
)

// maxEntries is how many entries of a directory a list shows.
const maxEntries = 20_000

// pathView is the answer of calls that made or changed something.
type pathView struct {
	Path string `json:"path" doc:"absolute" example:"/workspace/home/src/main.py"`
}

// with runs f on the files of the box that the request names.
func (e *Endpoints) with(r *http.Request, f func(Files) (rest.Reply, error)) (rest.Reply, error) {
	return e.within(r.Context(), r, f)
}

func (e *Endpoints) within(ctx context.Context, r *http.Request, f func(Files) (rest.Reply, error)) (rest.Reply, error) {
	box, err := rest.Box(r, e.Host)
	if err != nil {
		return rest.Reply{}, err
	}
	files, err := e.Host.OpenFiles(ctx, box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	defer files.Close()
	return f(files)
}

// change runs a call that answers with a path.
func (e *Endpoints) change(r *http.Request, path string, f func(Files) error) (rest.Reply, error) {
	return e.with(r, func(files Files) (rest.Reply, error) {
		return rest.Reply{Body: pathView{shown(path)}}, f(files)
	})
}

type readQuery struct {
	Path     string `json:"path" doc:"absolute, or below /workspace/home" example:"src/main.py"`
	Encoding string `json:"encoding,omitempty" doc:"absent: text; bytes that are not UTF-8 become U+FFFD" enum:"base64"`
	Offset   int64  `json:"offset,omitempty" doc:"where to begin, in bytes" min:"0"`
	Length   *int64 `json:"length,omitempty" doc:"how many bytes to read at most; absent: to the end of the file" min:"0" example:"4096"`
}

type readView struct {
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty" enum:"base64"`
	Size     int64  `json:"size" doc:"of the whole file, in bytes"`
}

func (e *Endpoints) read(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var q readQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	path, err := resolve("path", q.Path, false)
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
	return e.with(r, func(files Files) (rest.Reply, error) {
		info, content, err := files.Read(path, q.Offset, length)
		if err != nil {
			return rest.Reply{}, err
		}
		if q.Length == nil && info.Size-q.Offset > e.MaxRead {
			return rest.Reply{}, tooLarge(info.Size, e.MaxRead)
		}
		data, err := io.ReadAll(content)
		if err != nil {
			return rest.Reply{}, err
		}
		if int64(len(data)) > e.MaxRead { // it grew, or said nothing of its size, as files of /proc do
			return rest.Reply{}, tooLarge(int64(len(data)), e.MaxRead)
		}
		return rest.Reply{Body: readAnswer(data, q.Encoding, info.Size)}, nil
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
	Path     string `json:"path" doc:"absolute, or below /workspace/home" example:"src/main.py"`
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty" doc:"of content; absent: text" enum:"base64"`
}

func (e *Endpoints) write(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body writeBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	path, err := resolve("path", body.Path, false)
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
	return e.change(r, path, func(files Files) error { return files.Write(path, 0, content) })
}

type folderQuery struct {
	Folder string `json:"folder,omitempty" doc:"absolute, or below /workspace/home; absent: /workspace/home" example:"src"`
}

// folder reads the query of a call that works on a folder.
func folder(r *http.Request) (string, error) {
	var q folderQuery
	if err := rest.Query(r, &q); err != nil {
		return "", err
	}
	return resolve("folder", q.Folder, true)
}

type listView struct {
	Files     []entryView `json:"files"`
	Truncated bool        `json:"truncated,omitempty" doc:"the directory has more entries than one answer shows"`
}

type entryView struct {
	Name    string `json:"name" doc:"bytes that are not UTF-8 are shown as U+FFFD" example:"main.py"`
	Path    string `json:"path" example:"/workspace/home/src/main.py"`
	Size    int64  `json:"size" doc:"in bytes; of a symbolic link, that of what it leads to; 0 for a directory"`
	IsDir   bool   `json:"is_dir" doc:"a directory, or a symbolic link to one"`
	ModTime string `json:"mod_time" format:"date-time"`
	Type    string `json:"type" enum:"file directory symlink other"`
}

func (e *Endpoints) list(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	dir, err := folder(r)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.with(r, func(files Files) (rest.Reply, error) {
		infos, more, err := files.List(dir, maxEntries)
		if err != nil {
			return rest.Reply{}, err
		}
		view := listView{Files: make([]entryView, 0, len(infos)), Truncated: more}
		for _, info := range infos {
			entry := entryView{
				Name: strings.ToValidUTF8(string(info.Name), "\uFFFD"), Path: shown(dir + "/" + string(info.Name)),
				Size: info.Size, IsDir: info.IsDir, ModTime: modTime(info), Type: info.Type,
			}
			if info.IsDir {
				entry.Size = 0
			}
			view.Files = append(view.Files, entry)
		}
		return rest.Reply{Body: view}, nil
	})
}

func modTime(info Info) string { return time.Unix(0, info.Time).UTC().Format(time.RFC3339) }

type statQuery struct {
	Path   string `json:"path" doc:"absolute, or below /workspace/home" example:"src/main.py"`
	Follow bool   `json:"follow,omitempty" doc:"describe what a symbolic link leads to"`
}

type statView struct {
	Type    string `json:"type" enum:"file directory symlink other"`
	Size    int64  `json:"size"`
	ModTime string `json:"mod_time" format:"date-time"`
	Inode   uint64 `json:"inode"`
	Version string `json:"version" doc:"differs once the content has changed" example:"42-1787140619000000000-12"`
	Mode    string `json:"mode" doc:"permissions, octal" example:"0644"`
}

func (e *Endpoints) stat(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var q statQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	path, err := resolve("path", q.Path, false)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.with(r, func(files Files) (rest.Reply, error) {
		info, err := files.Stat(path, q.Follow)
		if err != nil {
			return rest.Reply{}, err
		}
		return rest.Reply{Body: statView{
			Type: info.Type, Size: info.Size, ModTime: modTime(info), Inode: info.Inode,
			Version: fmt.Sprintf("%d-%d-%d", info.Inode, info.Time, info.Size), Mode: fmt.Sprintf("%04o", info.Mode),
		}}, nil
	})
}

type mkdirBody struct {
	Path    string `json:"path" example:"src/lib"`
	Parents bool   `json:"parents,omitempty" doc:"make missing parents; a directory that is there already is no error"`
}

func (e *Endpoints) mkdir(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body mkdirBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	path, err := resolve("path", body.Path, false)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.change(r, path, func(files Files) error { return files.MakeDir(path, body.Parents) })
}

type renameBody struct {
	From string `json:"from" example:"a.txt"`
	To   string `json:"to" example:"b.txt"`
}

func (e *Endpoints) rename(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body renameBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	from, err := resolve("from", body.From, false)
	if err != nil {
		return rest.Reply{}, err
	}
	to, err := resolve("to", body.To, false)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.change(r, to, func(files Files) error { return files.Rename(from, to) })
}

type removeBody struct {
	Path      string `json:"path" example:"src/lib"`
	Recursive bool   `json:"recursive,omitempty" doc:"remove a directory with everything in it; without, only an empty one"`
}

func (e *Endpoints) remove(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body removeBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	path, err := resolve("path", body.Path, false)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.change(r, path, func(files Files) error { return files.Remove(path, body.Recursive) })
}
