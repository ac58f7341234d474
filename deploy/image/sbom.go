package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/v1"
)

// product is the module of all programs.
const product = "github.com/csi-addons/node-healer"

// sbom lists the programs of a platform and the modules that the linker put into each.
func (c config) sbom(platform *v1.Platform) ([]byte, error) {
	image := cyclonedx.Component{
		BOMRef: c.name, Type: cyclonedx.ComponentTypeContainer, Name: "node-healer", Version: c.version,
		Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
	}
	modules := map[string]cyclonedx.Component{}
	var parts []cyclonedx.Component
	needs := []cyclonedx.Dependency{{Ref: image.BOMRef, Dependencies: &[]string{}}}
	for _, name := range programs {
		program := filepath.Join(c.dir(platform), name)
		raw, err := os.ReadFile(program)
		if err != nil {
			return nil, err
		}
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, err
		}
		ref := "pkg:golang/" + info.Path + "@" + c.version
		parts = append(parts, cyclonedx.Component{
			BOMRef: ref, PackageURL: ref, Type: cyclonedx.ComponentTypeApplication, Name: name, Version: c.version,
			Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(raw))}},
		})
		links := []string{}
		for _, m := range modulesOf(info) {
			modules[m.BOMRef] = m
			links = append(links, m.BOMRef)
		}
		*needs[0].Dependencies = append(*needs[0].Dependencies, ref)
		needs = append(needs, cyclonedx.Dependency{Ref: ref, Dependencies: &links})
	}
	for _, m := range modules {
		parts = append(parts, m)
	}
	slices.SortFunc(parts, func(a, b cyclonedx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: time.Unix(c.created, 0).UTC().Format(time.RFC3339), Component: &image}
	bom.Components, bom.Dependencies = &parts, &needs
	var text bytes.Buffer
	err := cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return text.Bytes(), err
}

// modulesOf returns what a program is made of besides the product: Go's own library and
// the modules, sorted.
func modulesOf(info *debug.BuildInfo) []cyclonedx.Component {
	found := []cyclonedx.Component{module("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		found = append(found, module(m.Path, m.Version))
	}
	slices.SortFunc(found, func(a, b cyclonedx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	return found
}

func module(path, version string) cyclonedx.Component {
	ref := "pkg:golang/" + path + "@" + version
	return cyclonedx.Component{BOMRef: ref, PackageURL: ref, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version}
}
