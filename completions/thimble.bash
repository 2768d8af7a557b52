# Completion of the `thimble` command for bash. A test compares it with what --help says.

_thimble() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local model="-m --model" engine="-t --threads --memory --kv --io --pin --preload --check"
  COMPREPLY=()

  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(
      compgen -W "run chat serve inspect tokenize detokenize eval plan doctor bench pack verify synth -h --help --version" -- "$word"
    )
    return
  fi

  case ${COMP_WORDS[1]}$previous in
    pack--experts)
      mapfile -t COMPREPLY < <(compgen -W "mxfp4" -- "$word")
      return
      ;;
    pack--trunk)
      mapfile -t COMPREPLY < <(compgen -W "q8" -- "$word")
      return
      ;;
  esac

  case $previous in
    -m | --model | -o | --output)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$word")
      return
      ;;
    -f | --file | --stats | --logits | --session)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return
      ;;
    --arch)
      mapfile -t COMPREPLY < <(compgen -W "kimi-k3 kimi-linear-48b k3-small" -- "$word")
      return
      ;;
    --io)
      mapfile -t COMPREPLY < <(compgen -W "auto direct buffered mmap" -- "$word")
      return
      ;;
    --pin)
      mapfile -t COMPREPLY < <(compgen -W "auto on off" -- "$word")
      return
      ;;
    --kv)
      mapfile -t COMPREPLY < <(compgen -W "f32 bf16 fp8" -- "$word")
      return
      ;;
    --effort)
      mapfile -t COMPREPLY < <(compgen -W "low high max off" -- "$word")
      return
      ;;
    # Their values cannot be listed.
    -t | --threads | --memory | -p | --prompt | --ids | -n | -c | --context | -s | --seed | \
      --temp | --top-k | --top-p | --min-p | --repeat-penalty | --stop | --prefill-chunk | \
      --drive | --cores | --probe | --layers | --experts | --distinct-layers | --distinct-experts | \
      --system | --host | --port | --api-key | --cors | --allow-host | --connections | --name | \
      --parallel | --queue)
      return
      ;;
  esac

  local options
  case ${COMP_WORDS[1]} in
    run)
      options="$model $engine -p --prompt -f --file --ids -n -c --context -s --seed --temp --top-k
        --top-p --min-p --repeat-penalty --stop --prefill-chunk --session --stats --logits
        --out-ids -v --verbose"
      ;;
    chat)
      options="$model $engine --system --effort --session -n -c --context -s --seed --temp --top-p
        --top-k --min-p --repeat-penalty"
      ;;
    serve)
      options="$model $engine --host --port --api-key --cors --allow-host --connections --name --effort
        --parallel --queue -c --context"
      ;;
    inspect) options="$model --json" ;;
    tokenize) options="$model --markup --jsonl" ;;
    detokenize) options="$model --jsonl" ;;
    eval) options="$model $engine -f --file -c --context --json" ;;
    plan) options="$model --arch --memory --drive --cores -c --context --kv --json" ;;
    doctor) options="$model --memory --probe --json" ;;
    bench) options="kernels io decode prefill $model -t --threads --memory --json" ;;
    pack) options="$model -o --output --raw --experts --trunk" ;;
    verify) options="$model" ;;
    synth)
      options="--arch -o --output --layers --experts --distinct-layers --distinct-experts -s --seed
        --raw"
      ;;
    *) return ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "-h --help $options" -- "$word")
}

complete -F _thimble thimble
