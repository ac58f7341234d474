// Command image writes the image of all programs, for several platforms, as an OCI archive,
// and an SBOM for each platform beside it; with -release all that a release has. From the same programs it writes the same bytes,
// on any machine: it reads no clock, and takes the authorities' certificates from a module
// of a pinned version. It needs no container engine and no network.
//
// It is a module of its own, because the product needs none of what this does.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// archive and sboms are what is written: the index of all platforms with its images, and
// an SBOM for each platform.
const (
	archive  = "node-healer.oci.tar"
	sbomName = "node-healer-%s-%s.cdx.json"
)

// searchPath lets kubectl exec start healerctl by its name, whatever default the runtime has.
// It is the usual one, so that programs of an image that is made from this one are found, too.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// config is what the command line says.
type config struct {
	out, name, version string
	// programs has a directory OS/ARCHITECTURE for each platform.
	programs, licence string
	platforms         string
	created           int64
}

func main() {
	log.SetFlags(0)
	var c config
	flag.StringVar(&c.out, "out", "bin/image", "`directory` to write to")
	flag.StringVar(&c.name, "name", "", "the image's `name`, with a tag")
	flag.StringVar(&c.version, "version", "", "the `version` of the programs")
	flag.StringVar(&c.programs, "programs", "bin/image", "`directory` with the programs, in OS/ARCHITECTURE")
	flag.StringVar(&c.licence, "licence", "LICENSE", "the licence's `file`")
	flag.StringVar(&c.platforms, "platforms", "linux/amd64,linux/arm64", "`OS/ARCHITECTURE`, with commas between")
	flag.Int64Var(&c.created, "created", 0, "when the commit was made, in `seconds` since 1970: all times in the image (SOURCE_DATE_EPOCH)")
	r := release{chart: "../chart", changelog: "../../CHANGELOG.md"}
	flag.StringVar(&r.to, "release", "", "`directory` to write a whole release to, in place of -out: image, SBOMs, programs, chart, notes and checksums")
	flag.Parse()
	if c.name == "" || c.version == "" || flag.NArg() > 0 {
		log.Fatal("image: -name and -version are required, and nothing but flags")
	}
	r.config = c
	if err := run(r); err != nil {
		log.Fatal("image: ", err)
	}
}

func run(r release) error {
	if r.to != "" {
		return r.write()
	}
	digest, err := r.config.write()
	if err == nil {
		fmt.Println(r.name + "@" + digest)
	}
	return err
}

// write writes the image and its SBOMs, and returns the image's digest.
func (c config) write() (digest string, err error) {
	index := emptyIndex
	for _, name := range strings.Split(c.platforms, ",") {
		platform, err := v1.ParsePlatform(name)
		if err != nil {
			return "", err
		}
		image, err := c.image(platform)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
		sbom, err := c.sbom(platform)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(c.out, fmt.Sprintf(sbomName, platform.OS, platform.Architecture)), sbom, 0o644); err != nil {
			return "", err
		}
	}
	return writeArchive(filepath.Join(c.out, archive), c.name, index)
}

// image is what the Dockerfile builds.
func (c config) image(platform *v1.Platform) (v1.Image, error) {
	files, err := c.files(platform)
	if err != nil {
		return nil, err
	}
	created := time.Unix(c.created, 0).UTC()
	layer, err := newLayer(files, created)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: platform.Architecture, OS: platform.OS, Created: v1.Time{Time: created},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: "0:0", Env: []string{"PATH=" + searchPath}, Entrypoint: []string{"/" + programDir + "node-healer"},
			Labels: map[string]string{
				"org.opencontainers.image.title":       "node-healer",
				"org.opencontainers.image.description": "Checks and heals CSI volumes on the node",
				"org.opencontainers.image.source":      "https://github.com/csi-addons/node-healer",
				"org.opencontainers.image.licenses":    "Apache-2.0",
				"org.opencontainers.image.version":     c.version,
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "make image"}})
}
