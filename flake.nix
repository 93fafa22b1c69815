# `nix run` builds and starts gpufleet. The Rust of nixpkgs has the standard library of one platform, so that the probe for the
# other architecture is left out; `gpufleet --version` says so. Only parsed by tests/release, never built there.
{
  description = "A terminal monitor for the GPU servers of a small lab, over plain SSH";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" "aarch64-darwin" "x86_64-darwin" ];
      forEach = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
    in
    {
      packages = forEach (pkgs: {
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "gpufleet";
          version = (builtins.fromTOML (builtins.readFile ./Cargo.toml)).package.version;
          src = self;
          cargoLock.lockFile = ./Cargo.lock;
          cargoBuildFlags = [ "--bin" "gpufleet" ];
          # The tests start servers and make network namespaces, which a build may not.
          doCheck = false;
          # Without the standard library for Linux on x86_64 no probe can be built; hosts then show the values of nvidia-smi.
          GPUFLEET_ALLOW_NO_PROBE = "1";
          nativeBuildInputs = [ pkgs.installShellFiles ];
          postInstall = ''
            $out/bin/gpufleet man > gpufleet.1
            installManPage gpufleet.1
            for shell in bash zsh fish; do
              $out/bin/gpufleet completions $shell > gpufleet.$shell
            done
            installShellCompletion gpufleet.bash gpufleet.fish --zsh gpufleet.zsh
          '';
          meta = {
            license = with pkgs.lib.licenses; [ mit asl20 ];
            mainProgram = "gpufleet";
          };
        };
      });

      devShells = forEach (pkgs: {
        default = pkgs.mkShell { packages = with pkgs; [ cargo rustc clippy rustfmt openssh tmux python3 ]; };
      });
    };
}
