package files

import (
	"reflect"

	"boxgate/api/capture"
	"boxgate/api/rest"
	"boxgate/api/strict"
)

// Endpoints serves the files of boxes.
type Endpoints struct {
	Boxes  rest.Finder
	Host   Host
	Bodies strict.Bodies
	// MaxRead is the maximum number of bytes of a file in a response of read.
	MaxRead int64
	// Output bounds the memory of all responses of read and list together.
	Output *capture.Budget
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
		{Method: "POST", Path: "/v2/box/{id}/files/upload", ID: "uploadFiles", Summary: "Write files of any size: for each file a part paths, followed by a part files",
			Consumes: "multipart/form-data", Request: reflect.TypeFor[uploadForm](), Response: reflect.TypeFor[uploadView](), Handle: e.upload},
		{Method: "GET", Path: "/v2/box/{id}/files/download", ID: "downloadFile", Summary: "The bytes of a file, or a directory as a tar archive",
			Query: reflect.TypeFor[folderQuery](), Produces: []string{"application/octet-stream", tarMedia}, Handle: e.download},
		{Method: "POST", Path: "/v2/box/{id}/files/unpack", ID: "unpackFiles", Summary: "Extract a tar archive into a directory",
			Query: reflect.TypeFor[folderQuery](), Consumes: tarMedia, Response: reflect.TypeFor[pathView](), Handle: e.unpack},
	}
}
