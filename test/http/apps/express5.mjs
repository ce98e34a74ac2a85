import express from 'express'
import { serve } from './express.mjs'

serve(express)
