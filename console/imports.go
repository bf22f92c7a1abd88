package console

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// The pages of imports are next to the bulk operations: their rollbacks are some.
var (
	importPages = []page{
		{path: "imports", name: "imports", title: "Imports", section: "bulk", live: 3, show: (*view).listImports},
		{path: "imports/{id}", name: "importone", title: "Import", section: "bulk", live: 1, show: (*view).showImport},
	}
	importActions = []action{
		{path: "imports/{id}/abort", back: "imports/{id}", do: changeOne("Import %d is aborted. Its tasks remain.", (*view).importURL, func(c *Console, ctx context.Context, id int64) error {
			_, err := c.imports.AbortImport(ctx, &perceptorv1.AbortImportRequest{Id: id})
			return err
		})},
		{path: "imports/{id}/rollback", back: "imports/{id}", do: rollbackImport},
	}
)

func (v *view) importURL(id int64) string { return v.URL("imports/" + strconv.FormatInt(id, 10)) }

func (v *view) listImports() (any, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return nil, err
	}
	return v.imports.ListImports(ctx, &perceptorv1.ListImportsRequest{PageSize: pageSize, PageToken: v.Query("page")})
}

// importData is the data of the page of an import.
type importData struct{ *perceptorv1.Import }

func (v *view) showImport() (any, error) {
	ctx, id, err := v.asTenantOf()
	if err != nil {
		return nil, err
	}
	i, err := v.imports.GetImport(ctx, &perceptorv1.GetImportRequest{Id: id})
	if err != nil {
		return nil, err
	}
	return &importData{i}, nil
}

// Open reports whether the import takes chunks.
func (d *importData) Open() bool { return d.State == perceptorv1.Import_OPEN }

// Settled reports whether nothing happens to the import by itself.
func (d *importData) Settled() bool {
	return !d.Open() && d.State != perceptorv1.Import_ROLLING_BACK
}

// Rolled reports whether the import is, or was, rolled back.
func (d *importData) Rolled() bool {
	return d.State == perceptorv1.Import_ROLLING_BACK || d.State == perceptorv1.Import_ROLLED_BACK
}

// Chunks lists the numbers of the stored chunks, the first few ranges.
func (d *importData) Chunks() string {
	const most = 10
	var list []string
	for i, r := range d.StoredChunks {
		if i == most {
			list = append(list, "…")
			break
		}
		text := strconv.FormatInt(r.First, 10)
		if r.Last > r.First {
			text += "–" + strconv.FormatInt(r.Last, 10)
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// rollbackImport removes the tasks of an import. The user must have typed how many it has added.
func rollbackImport(v *view) (done, error) {
	ctx, id, err := v.asTenantOf()
	if err != nil {
		return done{}, err
	}
	i, err := v.imports.GetImport(ctx, &perceptorv1.GetImportRequest{Id: id})
	if err != nil {
		return done{}, err
	}
	typed := strings.NewReplacer(",", "", ".", "", " ", "").Replace(v.Query("count"))
	if typed != strconv.FormatInt(i.AddedCount, 10) {
		return done{}, status.Errorf(codes.FailedPrecondition, "nothing was changed: the count that was typed is not %d", i.AddedCount)
	}
	_, err = v.imports.RollbackImport(ctx, &perceptorv1.RollbackImportRequest{Id: id})
	return done{text: fmt.Sprintf("Import %d is being rolled back.", id), to: v.importURL(id)}, err
}
